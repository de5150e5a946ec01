//! The Lambda function. It drains the queue, and answers the other actions too.

fn main() -> Result<(), tidegate_lambda::Error> {
    tidegate_lambda::run(tidegate_job::app::program())
}
