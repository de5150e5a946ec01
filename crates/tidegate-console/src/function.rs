//! The console as a Lambda function, behind a function URL or an HTTP API. It serves the same router and has
//! no logic of its own.
//!
//! It reads the options of the verb `console` from the environment: `TIDEGATE_CONSOLE_AUTH` and so on. Use a
//! separate function with a separate database login, never those of the drain.

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::map_request;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Command, FromArgMatches};
use lambda_http::request::RequestContext;
use tidegate_http::function::serve;

use tidegate::Lookup;
use tidegate::config::environment;
use tidegate_admin::Program;
use tidegate_admin::logs::{FlushAtExit, PATIENCE, flush};
use tidegate_admin::program::log_panics;
pub use tidegate_http::function::Error;

use crate::guard::FunctionHost;
use crate::options::Options;
use crate::router;
use crate::verb::mounted;
use crate::who::Given;

/// Serves requests until the function ends. If the settings are invalid, the function still starts. It
/// answers every request with 503, and the log has the reason.
///
/// # Errors
/// When Lambda's runtime interface cannot be used.
pub fn run(program: Program) -> Result<(), Error> {
    let _flush = FlushAtExit;
    log_panics();
    tidegate_aws::install();
    let unconfigured = Router::new().fallback(|| async { StatusCode::SERVICE_UNAVAILABLE });
    let started = async || {
        let started = start(program, &environment);
        started.inspect_err(|error| eprintln!("tidegate: {error}"))
    };
    serve(started, unconfigured, || flush(PATIENCE))
}

fn start(program: Program, lookup: Lookup<'_>) -> Result<Router, tidegate::Error> {
    let runtime = program.start(lookup)?;
    let mut settings = options(lookup)?.settings(None, None)?;
    settings.is_frozen_between = true;
    let base = settings.base.path().to_owned();
    let routes = mounted(&base, router(runtime, settings));
    Ok(routes.layer(map_request(identified)))
}

/// Reads the options of a function, whose callers AWS verifies unless a variable says otherwise.
///
/// # Errors
/// [`tidegate::Error::Config`] names the option and what is allowed.
fn options(lookup: Lookup<'_>) -> Result<Options, tidegate::Error> {
    let command = Options::augment_args(Command::new("console").no_binary_name(true));
    let flags = command.get_arguments().filter_map(|flag| {
        let (name, value) = (flag.get_long()?, lookup(flag.get_env()?.to_str()?)?);
        if flag.get_action().takes_values() {
            return Some(format!("--{name}={value}"));
        }
        ["1", "true"]
            .contains(&&*value)
            .then(|| format!("--{name}"))
    });
    let flags: Vec<String> = flags.collect();
    let command = command.mut_args(|flag| flag.env(None));
    let any = NonEmptyStringValueParser::new();
    let command = command.mut_arg("auth", |auth| auth.default_value("iam").value_parser(any));
    let given = command.try_get_matches_from(flags);
    let options = given.and_then(|given| Options::from_arg_matches(&given));
    options.map_err(|error| tidegate::Error::Config(error.to_string()))
}

/// Adds the caller that AWS has verified, and the host name that AWS has routed here.
async fn identified(mut request: Request) -> Request {
    let context = request.extensions().get::<RequestContext>();
    let (caller, name) = (context.and_then(caller), context.and_then(name));
    let extensions = request.extensions_mut();
    if let Some(caller) = caller {
        extensions.insert(Given::Iam(caller));
    }
    if let Some(name) = name {
        extensions.insert(FunctionHost(name));
    }
    request
}

/// The host name of the function URL or HTTP API.
fn name(context: &RequestContext) -> Option<String> {
    match context {
        RequestContext::ApiGatewayV2(context) => context.domain_name.clone(),
        _ => None,
    }
}

/// The ARN that AWS IAM has verified.
fn caller(context: &RequestContext) -> Option<String> {
    match context {
        RequestContext::ApiGatewayV2(context) => {
            context.authorizer.as_ref()?.iam.as_ref()?.user_arn.clone()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    /// A request as a function URL with `AWS_IAM` sends it; `iam` is what AWS has verified.
    fn request(iam: &str) -> lambda_http::Request {
        let event = format!(
            r#"{{"version": "2.0", "routeKey": "$default", "rawPath": "/", "rawQueryString": "", "headers": {{"host": "x"}},
                "isBase64Encoded": false, "requestContext": {{"accountId": "1", "apiId": "a", "domainName": "x", "domainPrefix": "x",
                "authorizer": {{{iam}}}, "http": {{"method": "GET", "path": "/", "protocol": "HTTP/1.1", "sourceIp": "1.2.3.4",
                "userAgent": "u"}}, "requestId": "r", "routeKey": "$default", "stage": "$default", "time": "t", "timeEpoch": 1}}}}"#
        );
        lambda_http::request::from_str(&event).unwrap()
    }

    async fn caller_of(request: lambda_http::Request) -> String {
        let told = |request: Request| async move {
            match request.extensions().get::<Given>() {
                Some(Given::Iam(name)) => name.clone(),
                _ => "nobody".to_owned(),
            }
        };
        let routes = Router::new().route("/", get(told));
        let routes = routes.layer(map_request(identified));
        let answer = routes.oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let body = to_bytes(answer.into_body(), 1000).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn the_caller_is_the_one_that_aws_has_verified() {
        let arn = "arn:aws:sts::1:assumed-role/ops/grace";
        let iam = format!(
            r#""iam": {{"accessKey": "k", "accountId": "1", "callerId": "c", "userArn": "{arn}", "userId": "u"}}"#
        );
        assert_eq!(caller_of(request(&iam)).await, arn);
        assert_eq!(caller_of(request("")).await, "nobody");
    }

    #[test]
    fn a_function_reads_the_environment_and_lets_nobody_in_by_a_link() {
        let settings = |pairs: &[(&str, &str)]| {
            let lookup = |name: &str| {
                let found = pairs
                    .iter()
                    .find(|(known, _)| format!("TIDEGATE_CONSOLE_{known}") == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            options(&lookup)?.settings(None, None)
        };
        let told = settings(&[
            ("ALLOW", "act"),
            ("ACTORS", "ada, grace"),
            ("HOSTS", "x"),
            ("BEHIND_TLS", "true"),
        ]);
        let told = told.unwrap();
        let two = ["ada", "grace"].map(str::to_owned);
        assert_eq!(
            told.acting,
            crate::who::Acting::These(two.into_iter().collect())
        );
        assert!(
            told.behind_tls
                && settings(&[("WITHOUT_PAYLOADS", "false")])
                    .unwrap()
                    .shows_content
        );
        assert!(settings(&[("AUTH", "token")]).is_err());
    }
}
