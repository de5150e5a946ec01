//! The Lambda function: drains the queue, and does what else it is asked for.

fn main() -> Result<(), tidegate_lambda::Error> {
    tidegate_lambda::run({{crate}}::program())
}
