//! The Lambda function that drains the queue, and does what else it is asked for.

fn main() -> Result<(), tidegate_lambda::Error> {
    tidegate_lambda::run(tidegate_job::app::program())
}
