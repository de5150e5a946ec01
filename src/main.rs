//! A shell.
fn main() {}
