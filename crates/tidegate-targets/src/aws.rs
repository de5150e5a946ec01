//! Owns requests to AWS: one for each attempt, and what their errors mean.

use std::sync::LazyLock;

use serde_json::Value;
use tidegate::{Error, HandlerError};
use tidegate_aws::{Arn, NoResponse, Requests, Response, SignedRequest};

/// All targets of the process share the connections and the credentials.
static REQUESTS: LazyLock<Requests> = LazyLock::new(Requests::default);

/// A service of AWS at a place.
pub(crate) struct AwsService<'a> {
    /// Its name in `AWS_ENDPOINT_URL_…`.
    pub name: &'static str,
    pub place: Arn<'a>,
}

impl AwsService<'_> {
    /// Sends a request to a path of the service, and reads at most `most` bytes of the answer.
    ///
    /// # Errors
    /// Unavailable, if there is no answer.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&'static str, &str)],
        body: String,
        most: usize,
    ) -> Result<Response, HandlerError> {
        let host = REQUESTS.endpoint(self.name, &self.place).await;
        let host = host.map_err(|error: Error| HandlerError::unavailable("settings", error))?;
        let request = SignedRequest {
            to: self.place.of_service(),
            method,
            url: &format!("{host}{path}"),
            headers,
            body: body.into_bytes(),
        };
        REQUESTS
            .send(request, most)
            .await
            .map_err(|error| match error {
                NoResponse::Unsigned(_) => HandlerError::unavailable("credentials", error),
                NoResponse::Lost(_) => unreachable(error),
            })
    }

    /// Sends a request in the JSON protocol of AWS, and returns the answer's document.
    ///
    /// # Errors
    /// A failure of the whole call.
    pub(crate) async fn ask(
        &self,
        version: &str,
        action: &str,
        body: String,
    ) -> Result<Value, HandlerError> {
        let answer = self.say(version, action, body).await?;
        if answer.status != 200 {
            return Err(failure(&answer));
        }
        serde_json::from_slice(&answer.body)
            .map_err(|_| crate::outcome::bad("the answer is not JSON"))
    }

    /// Sends a request in the JSON protocol of AWS.
    ///
    /// # Errors
    /// Unavailable, if there is no answer.
    pub(crate) async fn say(
        &self,
        version: &str,
        action: &str,
        body: String,
    ) -> Result<Response, HandlerError> {
        let content = format!("application/x-amz-json-{version}");
        let headers = [("content-type", &*content), ("x-amz-target", action)];
        self.send("POST", "/", &headers, body, 1 << 20).await
    }
}

/// Returns the answer to a mere look at a resource, which changes nothing and which no event needs; `None` if
/// we may not look.
///
/// # Errors
/// What the service says of the resource.
pub(crate) fn seen(answer: Response) -> Result<Option<Response>, HandlerError> {
    match answer.status {
        200 => Ok(Some(answer)),
        _ if error_code(&answer).starts_with("AccessDenied") => Ok(None),
        _ => Err(failure(&answer)),
    }
}

/// The failure of a call that was not answered.
pub(crate) fn unreachable(why: impl std::fmt::Display) -> HandlerError {
    HandlerError::unavailable("unreachable", why)
}

/// Returns what an error of the service means: unavailable, because nothing happened. A request that is too
/// large fails as a call, so that the next one is smaller.
pub(crate) fn failure(answer: &Response) -> HandlerError {
    let code = error_code(answer);
    let said = format!("answered {}: {code}", answer.status);
    if answer.status == 413
        || code == "BatchRequestTooLong"
        || code.ends_with("BatchRequestTooLong")
    {
        return HandlerError::call_failed("too_large", said);
    }
    let error = match answer.status {
        _ if is_about_credentials(&code) => HandlerError::unavailable("credentials", said),
        401 | 403 => HandlerError::unavailable("credentials", said),
        429 => HandlerError::busy("throttled", said),
        _ => HandlerError::unavailable(code, said),
    };
    as_asked(error, answer)
}

/// Whether an error says that we may not do this, also about one entry of a request.
pub(crate) fn is_about_credentials(code: &str) -> bool {
    let parts = [
        "AccessDenied",
        "AccessDeniedException",
        "UnrecognizedClient",
        "InvalidClientTokenId",
        "ExpiredToken",
        "SignatureDoesNotMatch",
        "KmsAccessDenied",
        "KMSAccessDenied",
        "KmsDisabled",
        "KmsInvalidState",
        "KmsNotFound",
        "NotAuthorized",
    ];
    parts.iter().any(|part| code.contains(part))
}

/// Returns the name of an error, from the header or the document, without its name space.
fn error_code(answer: &Response) -> String {
    let header = answer.headers.get("x-amzn-errortype");
    let header = header.and_then(|value| value.to_str().ok());
    let document: Option<Value> = serde_json::from_slice(&answer.body).ok();
    let named = document
        .as_ref()
        .and_then(|document| document["__type"].as_str());
    let Some(name) = header.or(named) else {
        return answer.status.to_string();
    };
    let name = name.split(':').next().unwrap_or(name);
    let name = name.rsplit('#').next().unwrap_or(name);
    name.chars().take(100).collect()
}

/// Starts the next attempt when the answer's `Retry-After` says, if it has one.
pub(crate) fn as_asked(error: HandlerError, answer: &Response) -> HandlerError {
    let text = |name| answer.headers.get(name)?.to_str().ok();
    error.after_header(text("retry-after"), text("date"))
}
