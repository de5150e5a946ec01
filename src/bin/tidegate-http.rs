//! The second Lambda function: the HTTP interface of the medical jobs.

fn main() -> Result<(), lambda_http::Error> {
    tidegate_job::http::function::run()
}
