//! Reads secrets from Secrets Manager. No message quotes a secret.

use std::error::Error as StdError;
use std::time::Duration;

use aws_sdk_secretsmanager::Client;
use aws_sdk_secretsmanager::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_secretsmanager::operation::get_secret_value::{
    GetSecretValueError, GetSecretValueOutput,
};
use tidegate_core::Error;
use tidegate_core::connect::Version;
use tidegate_core::error::with_causes;

use crate::sdk::{Aws, CALL_TIMEOUT};

/// Longer than the SDK's own limit, whose error explains more. Loading the SDK's settings has no limit of its
/// own.
const READ_TIMEOUT: Duration = CALL_TIMEOUT.saturating_add(Duration::from_secs(1));

fn stage(version: Version) -> &'static str {
    match version {
        Version::Current => "AWSCURRENT",
        Version::Pending => "AWSPENDING",
    }
}

/// Reads a version of a secret, within six seconds; `None` when there is no such version.
///
/// # Errors
/// [`Error::Secret`] names the secret and what is wrong with it, and quotes none of its content.
pub(crate) async fn read(aws: &Aws, id: &str, version: Version) -> Result<Option<String>, Error> {
    let failed = |why: &str| Error::Secret(format!("{id}: {why}"));
    // The SDK's futures are large.
    let reading = Box::pin(fetch(aws, id, version));
    let answer = tokio::time::timeout(READ_TIMEOUT, reading).await;
    let late = |_| Err(failed(&format!("no answer within {READ_TIMEOUT:?}")));
    let Some(value) = answer.unwrap_or_else(late)? else {
        return Ok(None);
    };
    let binary = || failed("must be a text, got a binary value");
    value.secret_string.ok_or_else(binary).map(Some)
}

async fn fetch(
    aws: &Aws,
    id: &str,
    version: Version,
) -> Result<Option<GetSecretValueOutput>, Error> {
    let request = Client::new(aws.config().await?)
        .get_secret_value()
        .secret_id(id)
        .version_stage(stage(version))
        .send();
    match request.await {
        Ok(value) => Ok(Some(value)),
        Err(error) if version == Version::Pending && is_missing(&error) => Ok(None),
        Err(error) => Err(Error::Secret(format!("{id}: {}", reason(&error)))),
    }
}

fn is_missing(error: &SdkError<GetSecretValueError>) -> bool {
    error
        .as_service_error()
        .is_some_and(GetSecretValueError::is_resource_not_found_exception)
}

const NONSENSE: &str = "the service's answer makes no sense";

/// Returns what the service said, or why it could not be called. Never the answer itself, which may be the
/// secret.
fn reason(error: &SdkError<GetSecretValueError>) -> String {
    match error {
        SdkError::ServiceError(refused) => match (refused.err().code(), refused.err().message()) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (Some(code), None) => code.to_owned(),
            _ if refused.raw().status().is_success() => NONSENSE.to_owned(),
            _ => format!("the service answers {}", refused.raw().status()),
        },
        SdkError::TimeoutError(_) => format!("no answer within {CALL_TIMEOUT:?}"),
        // The outermost message only names the type of the failure.
        SdkError::DispatchFailure(failure) => failure
            .as_connector_error()
            .and_then(StdError::source)
            .map_or_else(|| "the service cannot be called".to_owned(), with_causes),
        SdkError::ConstructionFailure(_) => {
            "the service cannot be called: are AWS_REGION and credentials set?".to_owned()
        }
        _ => NONSENSE.to_owned(),
    }
}
