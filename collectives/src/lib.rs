//! Place holder until the first module lands.
