//! The shipped events and their handlers.
