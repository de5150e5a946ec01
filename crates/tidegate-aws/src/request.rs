//! Owns requests to AWS that the SDK does not make: signed with the process's credentials, over the HTTP
//! client that also reads secrets. Each is sent once; nothing is repeated here.

use std::error::Error as StdError;

use http::HeaderMap;
use tidegate_core::Error;
use tidegate_core::config::environment;
use tokio::sync::OnceCell;

use crate::Failed;
use crate::sdk::client_of_aws;
use crate::sign::Signer;

/// Sends requests over one pool of connections.
#[derive(Default)]
pub struct Requests {
    signer: Signer,
    http: OnceCell<reqwest::Client>,
}

/// A request to be signed and sent.
pub struct SignedRequest<'a> {
    /// The service and the region, as the signature names them.
    pub to: (&'a str, &'a str),
    /// The method, such as `POST`.
    pub method: &'a str,
    /// The URL, percent-encoded.
    pub url: &'a str,
    /// The headers, all of which are signed.
    pub headers: &'a [(&'static str, &'a str)],
    /// The body.
    pub body: Vec<u8>,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Response {
    /// The status, such as 200.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body. One that is longer than it may be is cut.
    pub body: Vec<u8>,
    /// Whether the body was cut.
    pub is_cut: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoResponse {
    /// The request was not sent: there are no credentials, or it cannot be signed.
    #[error("it cannot be signed: {0}")]
    Unsigned(String),
    /// It was not sent, or the connection was lost before the whole answer was here.
    #[error("{0}")]
    Lost(String),
}

impl Requests {
    /// Sends a request, and reads at most `most` bytes of the answer.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn send(
        &self,
        request: SignedRequest<'_>,
        most: usize,
    ) -> Result<Response, NoResponse> {
        let SignedRequest {
            to: (service, region),
            method,
            url,
            headers,
            body,
        } = request;
        let unsigned = |error: Failed| NoResponse::Unsigned(error.to_string());
        let signed = self
            .signer
            .headers(service, region, method, url, headers, &body);
        let signed = signed.await.map_err(unsigned)?;
        let http = self.http.get_or_try_init(client_of_aws).await;
        let http = http.map_err(|error| unsigned(error.into()))?;
        let method = method
            .parse()
            .map_err(|_| NoResponse::Unsigned("no such method".to_owned()))?;
        let mut request = http.request(method, url).body(body).headers(signed);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        exchange(request, most).await
    }

    /// Returns the URL of the service of this place, without a slash at the end. `AWS_ENDPOINT_URL_…` with
    /// the service's `name`, or `AWS_ENDPOINT_URL`, replaces it.
    ///
    /// # Errors
    /// When the settings of AWS cannot be read.
    pub async fn endpoint(&self, name: &str, place: &Arn<'_>) -> Result<String, Error> {
        let own = environment(&format!("AWS_ENDPOINT_URL_{name}"));
        let config = self.signer.0.config().await?;
        let own = own.or_else(|| config.endpoint_url().map(str::to_owned));
        let host = own.unwrap_or_else(|| place.endpoint());
        Ok(host.trim_end_matches('/').to_owned())
    }
}

/// Sends a request, and reads at most `most` bytes of the answer's body.
///
/// # Errors
/// When there is no connection, or it is lost.
pub async fn exchange(
    request: reqwest::RequestBuilder,
    most: usize,
) -> Result<Response, NoResponse> {
    let mut answer = request.send().await.map_err(lost)?;
    let (status, headers) = (
        answer.status().as_u16(),
        std::mem::take(answer.headers_mut()),
    );
    let (mut body, mut is_cut) = (Vec::new(), false);
    while let Some(part) = answer.chunk().await.map_err(lost)? {
        let room = most - body.len();
        body.extend_from_slice(&part[..part.len().min(room)]);
        if part.len() > room {
            is_cut = true;
            break;
        }
    }
    Ok(Response {
        status,
        headers,
        body,
        is_cut,
    })
}

/// Says why, with the first cause. The URL is left out, because it may hold a secret.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn lost(error: reqwest::Error) -> NoResponse {
    let why = if error.is_connect() {
        "no connection"
    } else if error.is_timeout() {
        "no answer in time"
    } else {
        "the connection broke"
    };
    let mut first = error.source();
    while let Some(before) = first.and_then(StdError::source) {
        first = Some(before);
    }
    let first = first.map(|cause| format!(": {cause}"));
    NoResponse::Lost(why.to_owned() + &first.unwrap_or_default())
}

/// Where something is, according to its ARN: `arn:aws:lambda:eu-central-1:123456789012:function:name`.
pub struct Arn<'a> {
    partition: &'a str,
    service: &'a str,
    region: &'a str,
}

impl<'a> Arn<'a> {
    /// A service of a region, in a partition such as `aws` or `aws-cn`.
    pub fn new(partition: &'a str, service: &'a str, region: &'a str) -> Self {
        Self {
            partition,
            service,
            region,
        }
    }

    /// Reads the partition, the service and the region in an ARN.
    ///
    /// # Errors
    /// [`Error::Start`] when it is none.
    pub fn of(arn: &'a str) -> Result<Self, Error> {
        let mut parts = arn.split(':');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("arn"), Some(partition), Some(service), Some(region)) => {
                Ok(Self::new(partition, service, region))
            }
            _ => Err(Error::Start(format!("{arn:?} is no ARN"))),
        }
    }

    /// Returns the names of the service and of the region.
    pub fn of_service(&self) -> (&'a str, &'a str) {
        (self.service, self.region)
    }

    fn endpoint(&self) -> String {
        let suffix = match self.partition {
            "aws-cn" => "amazonaws.com.cn",
            _ => "amazonaws.com",
        };
        format!("https://{}.{}.{suffix}", self.service, self.region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_invoked_where_it_is() {
        let endpoint = |arn| Arn::of(arn).map(|place| place.endpoint());
        for (arn, url) in [
            (
                "arn:aws:lambda:eu-central-1:1:function:f:live",
                "https://lambda.eu-central-1.amazonaws.com",
            ),
            (
                "arn:aws-cn:lambda:cn-north-1:1:function:f",
                "https://lambda.cn-north-1.amazonaws.com.cn",
            ),
            (
                "arn:aws-us-gov:lambda:us-gov-west-1:1:function:f",
                "https://lambda.us-gov-west-1.amazonaws.com",
            ),
        ] {
            assert_eq!(endpoint(arn).unwrap(), url);
        }
        let error = endpoint("tidegate").unwrap_err().to_string();
        assert!(error.contains("\"tidegate\" is no ARN"), "{error}");
    }
}
