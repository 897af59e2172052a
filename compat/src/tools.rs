//! How the tools of this package take part in jobs. Programs use [`crate::init`].

pub use crate::process::{Session, join};
