//! Owns the form of a statement. Statements stand beside the calls that send them; [`super::statements`]
//! lists all of them.

use tokio_postgres::types::Type;

/// A statement with the types of its parameters. The types are sent with it, because nothing is prepared.
#[derive(Debug)]
pub struct Statement {
    /// The name in error messages.
    pub name: &'static str,
    /// Types of `$1`, `$2` and so on.
    pub params: &'static [Type],
    /// The SQL, in which `@tidegate` stands for the schema.
    pub text: &'static str,
}

/// Returns a text as a literal of SQL, where `standard_conforming_strings` is on.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Defines statements, also a program's own, each as `NAME: "name in error messages" [types of its
/// parameters] = "text";`, and their list `ALL`. A macro behind a semicolon adds the types of further ones.
#[macro_export]
macro_rules! statements {
    (@params $($param:ident),*) => { &[$($crate::tokio_postgres::types::Type::$param),*] };
    (@params $($param:ident),*; $more:ident) => { $more!($($param),*) };
    ($($(#[$doc:meta])* $vis:vis $name:ident: $label:literal [$($param:ident),* $(; $more:ident)?] = $text:expr;)*) => {
        $(
            $(#[$doc])*
            $vis static $name: $crate::queue::Statement = $crate::queue::Statement {
                name: $label,
                params: $crate::statements!(@params $($param),* $(; $more)?),
                text: $text,
            };
        )*

        /// All of these statements.
        pub(crate) static ALL: &[&$crate::queue::Statement] = &[$(&$name),*];
    };
}

pub use statements;
