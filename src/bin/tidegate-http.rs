//! The second Lambda function: the HTTP interface of the jobs and forms.

fn main() -> Result<(), lambda_http::Error> {
    tidegate_job::http::function::run()
}
