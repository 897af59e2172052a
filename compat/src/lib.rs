//! OpenSHMEM 1.6 for C, C++ and Rust programs.
