//! Reads the settings of traces and metrics from the environment: their destination, the ratio, and the resource that
//! they describe.

use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::resource::v1::Resource;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::{FLUSH, text};
use crate::config::{Lookup, is_on};
use crate::error::Error;

/// The default share of drains that are recorded.
const RATIO: f64 = 0.01;

/// The suffix of AWS hosts, which require signed requests.
const AWS: &str = ".amazonaws.com";

pub(super) struct Settings {
    pub traces: Option<Endpoint>,
    pub metrics: Option<Endpoint>,
    pub ratio: f64,
    pub shows_correlation: bool,
    /// The time limit for sending.
    pub limit: Duration,
    pub resource: Resource,
}

/// The destination of one signal.
pub(super) struct Endpoint {
    pub url: Url,
    pub headers: HeaderMap,
    /// The AWS service and region that requests are signed for.
    #[cfg_attr(
        not(feature = "aws"),
        expect(dead_code, reason = "nothing can be signed")
    )]
    pub signing: Option<Place>,
}

/// The service and region of a signature.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub service: String,
    pub region: String,
}

impl Settings {
    /// Reads the settings. Returns `None` if nothing is to be sent.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub(super) fn read(lookup: Lookup<'_>) -> Result<Option<Self>, Error> {
        let asks_xray = is_on(lookup, "TIDEGATE_XRAY")?;
        let ratio = ratio(lookup)?;
        let shows_correlation = is_on(lookup, "TIDEGATE_TRACE_CORRELATION")?;
        if lookup("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let traces = if asks_xray {
            Some(xray(lookup)?)
        } else {
            endpoint(lookup, "TRACES")?
        };
        let metrics = endpoint(lookup, "METRICS")?;
        if traces.is_none() && metrics.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            traces,
            metrics,
            ratio,
            shows_correlation,
            limit: limit(lookup)?,
            resource: resource(lookup)?,
        }))
    }
}

/// Returns the endpoint of X-Ray, which accepts spans directly in every region:
/// <https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch-OTLPEndpoint.html>.
fn xray(lookup: Lookup<'_>) -> Result<Endpoint, Error> {
    let name = "TIDEGATE_XRAY";
    let region = lookup("AWS_REGION").or_else(|| lookup("AWS_DEFAULT_REGION"));
    let region = region.ok_or_else(|| refused(name, "on needs AWS_REGION"))?;
    let own = lookup("AWS_ENDPOINT_URL_XRAY");
    let host = own.unwrap_or_else(|| format!("https://xray.{region}{AWS}"));
    let place = Place {
        service: "xray".to_owned(),
        region,
    };
    Ok(Endpoint {
        url: url(
            "AWS_ENDPOINT_URL_XRAY",
            &format!("{}/v1/traces", host.trim_end_matches('/')),
        )?,
        headers: HeaderMap::new(),
        signing: Some(signed(name, place)?),
    })
}

/// Returns the destination of a signal; `None` if no variable sets it.
fn endpoint(lookup: Lookup<'_>, signal: &str) -> Result<Option<Endpoint>, Error> {
    let exporter = format!("OTEL_{signal}_EXPORTER");
    match lookup(&exporter).as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(other) => {
            return Err(refused(
                &exporter,
                &format!("must be otlp or none, got {other:?}"),
            ));
        }
    }
    let (own, all) = (
        format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"),
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    );
    let url = match (lookup(&own), lookup(all)) {
        (Some(text), _) => url(&own, &text)?,
        (None, Some(text)) => {
            let path = signal.to_lowercase();
            url(all, &format!("{}/v1/{path}", text.trim_end_matches('/')))?
        }
        (None, None) => return Ok(None),
    };
    for name in [
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        &format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"),
    ] {
        if let Some(other) = lookup(name).filter(|protocol| protocol != "http/protobuf") {
            return Err(refused(
                name,
                &format!("must be http/protobuf, got {other:?}"),
            ));
        }
    }
    let mut headers = HeaderMap::new();
    for name in [
        "OTEL_EXPORTER_OTLP_HEADERS",
        &format!("OTEL_EXPORTER_OTLP_{signal}_HEADERS"),
    ] {
        read_headers(name, &lookup(name).unwrap_or_default(), &mut headers)?;
    }
    let place = url.host_str().and_then(place);
    let signing = place.map(|place| signed(&own, place)).transpose()?;
    Ok(Some(Endpoint {
        url,
        headers,
        signing,
    }))
}

/// Parses an address. The error does not quote it, because it may hold a password.
fn url(name: &str, text: &str) -> Result<Url, Error> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| refused(name, "must be an address such as http://127.0.0.1:4318"))
}

/// Returns the service and region of an AWS host: `xray.eu-central-1.amazonaws.com`, or
/// `vpce-1-2.xray.eu-central-1.vpce.amazonaws.com`.
fn place(host: &str) -> Option<Place> {
    let labels = host.strip_suffix(AWS)?;
    let labels = labels.strip_suffix(".vpce").unwrap_or(labels);
    let (labels, region) = labels.rsplit_once('.')?;
    let service = labels.rsplit('.').next()?;
    Some(Place {
        service: service.to_owned(),
        region: region.to_owned(),
    })
}

fn signed(name: &str, place: Place) -> Result<Place, Error> {
    if cfg!(feature = "aws") {
        return Ok(place);
    }
    let why = "this program was built without the feature aws, which signs";
    Err(refused(name, &format!("{}: {why}", place.service)))
}

/// Parses `name=value` pairs, separated by commas. Values are percent-encoded.
fn pairs(name: &str, text: &str) -> Result<Vec<(String, String)>, Error> {
    let form = || refused(name, "must be name=value pairs with commas between them");
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or_else(form)?;
        let value = decoded(value.trim()).ok_or_else(form)?;
        Ok((key.trim().to_owned(), value))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts.map(pair).collect()
}

fn read_headers(name: &str, text: &str, into: &mut HeaderMap) -> Result<(), Error> {
    for (key, value) in pairs(name, text)? {
        let key = HeaderName::try_from(&key);
        let value = HeaderValue::try_from(&value);
        let (Ok(key), Ok(mut value)) = (key, value) else {
            return Err(refused(
                name,
                "must be names and values that a header may have",
            ));
        };
        value.set_sensitive(true);
        into.insert(key, value);
    }
    Ok(())
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            u8::try_from(high * 16 + low).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

/// Reads `TIDEGATE_TRACE_RATIO`, or else the standard variables.
fn ratio(lookup: Lookup<'_>) -> Result<f64, Error> {
    let read = |name: &str| {
        let Some(text) = lookup(name) else {
            return Ok(None);
        };
        let ratio = text
            .trim()
            .parse()
            .ok()
            .filter(|ratio| (0.0..=1.0).contains(ratio));
        let why = format!("must be a number from 0 to 1, got {text:?}");
        ratio.map(Some).ok_or_else(|| refused(name, &why))
    };
    if let Some(ratio) = read("TIDEGATE_TRACE_RATIO")? {
        return Ok(ratio);
    }
    let name = "OTEL_TRACES_SAMPLER";
    let sampler = lookup(name);
    // The publisher of a trace decides whether it is sampled, whatever the sampler's name is.
    match sampler
        .as_deref()
        .map(|name| name.trim_start_matches("parentbased_"))
    {
        None | Some("traceidratio") => Ok(read("OTEL_TRACES_SAMPLER_ARG")?.unwrap_or(RATIO)),
        Some("always_on") => Ok(1.0),
        Some("always_off") => Ok(0.0),
        Some(_) => {
            let allowed =
                "must be always_on, always_off or traceidratio, or one of them after parentbased_";
            Err(refused(
                name,
                &format!("{allowed}, got {:?}", sampler.unwrap_or_default()),
            ))
        }
    }
}

/// Reads the standard's variable, in milliseconds. The limit cannot exceed [`FLUSH`], which a drain reserves of its
/// time.
fn limit(lookup: Lookup<'_>) -> Result<Duration, Error> {
    let name = "OTEL_EXPORTER_OTLP_TIMEOUT";
    let Some(text) = lookup(name) else {
        return Ok(FLUSH);
    };
    let limit = text.trim().parse().map(Duration::from_millis);
    limit.map_err(|_| refused(name, &format!("must be milliseconds, got {text:?}")))
}

/// Returns the resource that the spans describe.
fn resource(lookup: Lookup<'_>) -> Result<Resource, Error> {
    let name = "OTEL_RESOURCE_ATTRIBUTES";
    let mut known = pairs(name, &lookup(name).unwrap_or_default())?;
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|_| !known.iter().any(|(other, _)| other == key)) {
            known.push((key.to_owned(), value));
        }
    };
    let function = lookup("AWS_LAMBDA_FUNCTION_NAME");
    if function.is_some() {
        add("cloud.provider", Some("aws".to_owned()));
        add("cloud.platform", Some("aws_lambda".to_owned()));
        add("cloud.region", lookup("AWS_REGION"));
        add("faas.version", lookup("AWS_LAMBDA_FUNCTION_VERSION"));
        add("faas.name", function.clone());
    }
    add("telemetry.sdk.name", Some("tidegate".to_owned()));
    add("telemetry.sdk.language", Some("rust".to_owned()));
    add(
        "telemetry.sdk.version",
        Some(env!("CARGO_PKG_VERSION").to_owned()),
    );
    add(
        "service.name",
        function.or_else(|| Some("tidegate".to_owned())),
    );
    if let Some(service) = lookup("OTEL_SERVICE_NAME") {
        known.retain(|(key, _)| key != "service.name");
        known.push(("service.name".to_owned(), service));
    }
    let attributes: Vec<KeyValue> = known
        .into_iter()
        .map(|(key, value)| text(&key, value))
        .collect();
    Ok(Resource {
        attributes,
        ..Resource::default()
    })
}

fn refused(name: &str, why: &str) -> Error {
    Error::Config(format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;

    use super::*;

    const COLLECTOR: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/");

    fn read(settings: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let lookup = |name: &str| {
            let found = settings.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::read(&lookup).map_err(|error| error.to_string())
    }

    fn set(settings: &[(&str, &str)]) -> Settings {
        read(settings).unwrap().unwrap()
    }

    fn url_of(endpoint: Option<&Endpoint>) -> Option<&str> {
        endpoint.map(|endpoint| endpoint.url.as_str())
    }

    #[test]
    fn nothing_is_sent_unless_somebody_says_where() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[("TIDEGATE_TRACE_RATIO", "1")]).unwrap().is_none());
        assert!(read(&[("TIDEGATE_XRAY", "off")]).unwrap().is_none());
        assert!(
            read(&[COLLECTOR, ("OTEL_SDK_DISABLED", "true")])
                .unwrap()
                .is_none()
        );
        let none = [
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_METRICS_EXPORTER", "none"),
        ];
        assert!(read(&[COLLECTOR, none[0], none[1]]).unwrap().is_none());
    }

    #[test]
    fn each_signal_has_an_address_of_its_own_or_a_path_below_the_common_one() {
        let both = set(&[COLLECTOR]);
        assert_eq!(
            url_of(both.traces.as_ref()),
            Some("http://127.0.0.1:4318/v1/traces")
        );
        assert_eq!(
            url_of(both.metrics.as_ref()),
            Some("http://127.0.0.1:4318/v1/metrics")
        );
        let own = (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "https://traces.example/otlp",
        );
        assert_eq!(
            url_of(set(&[COLLECTOR, own]).traces.as_ref()),
            Some("https://traces.example/otlp")
        );
        let traces_alone = set(&[own]);
        assert!(traces_alone.metrics.is_none());
    }

    #[test]
    fn the_ratio_is_ours_or_that_of_the_standard_variables() {
        let ratio = |further: &[(&str, &str)]| set(&[&[COLLECTOR], further].concat()).ratio;
        let exact = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-9, "{found}");
        exact(ratio(&[]), 0.01);
        exact(ratio(&[("OTEL_TRACES_SAMPLER_ARG", "0.5")]), 0.5);
        exact(
            ratio(&[
                ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
                ("TIDEGATE_TRACE_RATIO", "1"),
            ]),
            1.0,
        );
        exact(
            ratio(&[("OTEL_TRACES_SAMPLER", "parentbased_always_on")]),
            1.0,
        );
        exact(ratio(&[("OTEL_TRACES_SAMPLER", "always_off")]), 0.0);
    }

    #[test]
    fn the_service_has_the_name_that_it_is_given() {
        let names = |further: &[(&str, &str)]| {
            let found = set(&[&[COLLECTOR], further].concat()).resource.attributes;
            let named = found
                .into_iter()
                .filter(|attribute| attribute.key == "service.name");
            let value = named.map(|attribute| match attribute.value.unwrap().value.unwrap() {
                Value::StringValue(name) => name,
                other => panic!("{other:?}"),
            });
            value.collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["tidegate"]);
        let attributes = (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=a%20b,deployment.environment.name=test",
        );
        assert_eq!(names(&[attributes]), ["a b"]);
        assert_eq!(
            names(&[attributes, ("OTEL_SERVICE_NAME", "mine")]),
            ["mine"]
        );
        assert_eq!(names(&[("AWS_LAMBDA_FUNCTION_NAME", "f")]), ["f"]);
    }

    #[test]
    fn headers_are_taken_and_never_shown() {
        let headers = (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Basic%20canary, x-tenant=t",
        );
        let settings = set(&[COLLECTOR, headers]);
        let headers = settings.traces.unwrap().headers;
        assert_eq!(headers["authorization"], "Basic canary");
        assert_eq!(headers["x-tenant"], "t");
        assert!(!format!("{headers:?}").contains("canary"));
    }

    #[cfg(feature = "aws")]
    #[test]
    fn what_goes_to_aws_is_signed_for_its_service_and_region() {
        let region = ("AWS_REGION", "eu-central-1");
        let xray = set(&[("TIDEGATE_XRAY", "on"), region]);
        let traces = xray.traces.unwrap();
        assert_eq!(
            traces.url.as_str(),
            "https://xray.eu-central-1.amazonaws.com/v1/traces"
        );
        let place = |service: &str, region: &str| {
            Some(Place {
                service: service.to_owned(),
                region: region.to_owned(),
            })
        };
        assert_eq!(traces.signing, place("xray", "eu-central-1"));
        assert!(xray.metrics.is_none());
        for (host, expected) in [
            (
                "https://monitoring.us-east-1.amazonaws.com/v1/metrics",
                place("monitoring", "us-east-1"),
            ),
            (
                "https://vpce-1-2.xray.eu-west-1.vpce.amazonaws.com/v1/traces",
                place("xray", "eu-west-1"),
            ),
            ("https://amazonaws.com.example/v1/traces", None),
            ("http://127.0.0.1:4318", None),
        ] {
            let settings = set(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", host)]);
            assert_eq!(settings.traces.unwrap().signing, expected, "{host}");
        }
    }

    #[test]
    fn a_bad_setting_is_refused_by_name_with_what_is_allowed() {
        for (name, value, allowed) in [
            ("TIDEGATE_XRAY", "yes", "off or on"),
            ("TIDEGATE_TRACE_RATIO", "2", "0 to 1"),
            ("TIDEGATE_TRACE_RATIO", "NaN", "0 to 1"),
            ("TIDEGATE_TRACE_CORRELATION", "1", "off or on"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on"),
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "127.0.0.1:4318",
                "http://127.0.0.1:4318",
            ),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "canary", "name=value"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=canary", "header"),
            ("OTEL_METRICS_EXPORTER", "prometheus", "otlp or none"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1s", "milliseconds"),
        ] {
            let error = read(&[COLLECTOR, (name, value)]).err().unwrap();
            assert!(error.contains(name) && error.contains(allowed), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
        let error = read(&[("TIDEGATE_XRAY", "on")]).err().unwrap();
        assert!(
            error.contains("TIDEGATE_XRAY") && error.contains("AWS_REGION"),
            "{error}"
        );
    }
}
