//! Reads the settings of traces that the exporter does not read itself.

use std::time::Duration;

use reqwest::Url;
use tidegate::connect::Trust;
use tidegate::{Error, Lookup};
use tidegate_core::config;

/// The default share of drains that are recorded.
const RATIO: f64 = 0.01;

/// The default time limit for sending, however slow the collector is.
const LIMIT: Duration = Duration::from_millis(500);

/// The suffix of AWS hosts, which require signed requests.
const AWS: &str = ".amazonaws.com";

pub(crate) struct TraceSettings {
    pub endpoint: Url,
    /// The AWS service and region that requests are signed for.
    pub signing: Option<SigningScope>,
    pub trust: Trust,
    pub ratio: f64,
    pub shows_correlation: bool,
    /// The time limit for sending.
    pub limit: Duration,
}

/// The service and region of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SigningScope {
    pub service: String,
    pub region: String,
}

impl TraceSettings {
    /// Reads the settings. Returns `None` if nothing is to be sent.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub(crate) fn read(lookup: Lookup<'_>) -> Result<Option<Self>, Error> {
        let asks_xray = config::read(lookup, "TIDEGATE_XRAY", false, &[])?;
        let ratio = ratio(lookup)?;
        let shows_correlation = config::read(lookup, "TIDEGATE_TRACE_CORRELATION", false, &[])?;
        if lookup("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let destination = if asks_xray {
            Some(xray(lookup)?)
        } else {
            endpoint(lookup)?
        };
        let Some((endpoint, signing)) = destination else {
            return Ok(None);
        };
        // AWS's own variable, which its SDK also follows, is the fallback for setups without another
        // collector.
        let named = ["OTEL_EXPORTER_OTLP_CERTIFICATE", "AWS_CA_BUNDLE"];
        let named = named.iter().find_map(|name| Some((*name, lookup(name)?)));
        let trust = named.map_or_else(
            || Ok(Trust::system()),
            |(name, path)| Trust::file(name, &path),
        )?;
        Ok(Some(Self {
            endpoint,
            signing,
            trust,
            ratio,
            shows_correlation,
            limit: limit(lookup)?,
        }))
    }
}

/// Returns the endpoint of X-Ray, which accepts spans directly in every region:
/// <https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch-OTLPEndpoint.html>.
fn xray(lookup: Lookup<'_>) -> Result<(Url, Option<SigningScope>), Error> {
    let region = lookup("AWS_REGION").or_else(|| lookup("AWS_DEFAULT_REGION"));
    let region = region.ok_or_else(|| refused("TIDEGATE_XRAY", "on needs AWS_REGION"))?;
    let own = lookup("AWS_ENDPOINT_URL_XRAY");
    let host = own.unwrap_or_else(|| format!("https://xray.{region}{AWS}"));
    let service = "xray".to_owned();
    let url = traces_below("AWS_ENDPOINT_URL_XRAY", &host)?;
    Ok((url, Some(SigningScope { service, region })))
}

/// Returns the destination; `None` if no variable sets it.
fn endpoint(lookup: Lookup<'_>) -> Result<Option<(Url, Option<SigningScope>)>, Error> {
    let exporter = "OTEL_TRACES_EXPORTER";
    match lookup(exporter).as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(other) => {
            let why = format!("must be otlp or none, got {other:?}");
            return Err(refused(exporter, &why));
        }
    }
    let (own, all) = (
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    );
    let url = match (lookup(own), lookup(all)) {
        (Some(text), _) => url(own, &text)?,
        (None, Some(text)) => traces_below(all, &text)?,
        (None, None) => return Ok(None),
    };
    let signing = url.host_str().and_then(place);
    Ok(Some((url, signing)))
}

fn traces_below(name: &str, base: &str) -> Result<Url, Error> {
    url(name, &format!("{}/v1/traces", base.trim_end_matches('/')))
}

/// Parses an address. The error does not quote it, because it may hold a password.
fn url(name: &str, text: &str) -> Result<Url, Error> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| refused(name, "must be an address such as http://127.0.0.1:4318"))
}

/// Returns the service and region of an AWS host: `xray.eu-central-1.amazonaws.com`, or
/// `vpce-1-2.xray.eu-central-1.vpce.amazonaws.com`.
fn place(host: &str) -> Option<SigningScope> {
    let labels = host.strip_suffix(AWS)?;
    let labels = labels.strip_suffix(".vpce").unwrap_or(labels);
    let (labels, region) = labels.rsplit_once('.')?;
    let service = labels.rsplit('.').next()?;
    Some(SigningScope {
        service: service.to_owned(),
        region: region.to_owned(),
    })
}

/// Reads `TIDEGATE_TRACE_RATIO`, or else the standard variables.
fn ratio(lookup: Lookup<'_>) -> Result<f64, Error> {
    let read = |name: &str| {
        let Some(text) = lookup(name) else {
            return Ok(None);
        };
        let ratio = text.trim().parse().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        let why = format!("must be a number from 0 to 1, got {text:?}");
        ratio.map(Some).ok_or_else(|| refused(name, &why))
    };
    if let Some(ratio) = read("TIDEGATE_TRACE_RATIO")? {
        return Ok(ratio);
    }
    let name = "OTEL_TRACES_SAMPLER";
    let sampler = lookup(name).unwrap_or_else(|| "traceidratio".to_owned());
    // The publisher of a trace decides whether it is sampled, whatever the sampler's name is.
    match sampler.trim_start_matches("parentbased_") {
        "traceidratio" => Ok(read("OTEL_TRACES_SAMPLER_ARG")?.unwrap_or(RATIO)),
        "always_on" => Ok(1.0),
        "always_off" => Ok(0.0),
        _ => {
            let allowed =
                "must be always_on, always_off or traceidratio, or one of them after parentbased_";
            Err(refused(name, &format!("{allowed}, got {sampler:?}")))
        }
    }
}

/// Reads the time limit for sending, which the standard's variable gives in milliseconds.
fn limit(lookup: Lookup<'_>) -> Result<Duration, Error> {
    let name = "OTEL_EXPORTER_OTLP_TIMEOUT";
    let Some(text) = lookup(name) else {
        return Ok(LIMIT);
    };
    let limit = text.trim().parse().map(Duration::from_millis);
    limit.map_err(|_| refused(name, &format!("must be milliseconds, got {text:?}")))
}

fn refused(name: &str, why: &str) -> Error {
    Error::Config(format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLLECTOR: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/");

    fn read(settings: &[(&str, &str)]) -> Result<Option<TraceSettings>, String> {
        let lookup = |name: &str| {
            let found = settings.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        TraceSettings::read(&lookup).map_err(|error| error.to_string())
    }

    fn set(settings: &[(&str, &str)]) -> TraceSettings {
        read(settings).unwrap().unwrap()
    }

    #[test]
    fn nothing_is_sent_unless_somebody_says_where() {
        for settings in [
            &[][..],
            &[("TIDEGATE_TRACE_RATIO", "1")],
            &[("TIDEGATE_XRAY", "off")],
            &[COLLECTOR, ("OTEL_SDK_DISABLED", "true")],
            &[COLLECTOR, ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert!(read(settings).unwrap().is_none(), "{settings:?}");
        }
    }

    #[test]
    fn traces_have_an_address_of_their_own_or_a_path_below_the_common_one() {
        let common = set(&[COLLECTOR]);
        assert_eq!(common.endpoint.as_str(), "http://127.0.0.1:4318/v1/traces");
        let own = "https://traces.example/otlp";
        let both = set(&[COLLECTOR, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", own)]);
        assert_eq!(both.endpoint.as_str(), own);
    }

    #[test]
    fn the_ratio_is_ours_or_that_of_the_standard_variables() {
        for (settings, expected) in [
            (&[][..], 0.01),
            (&[("OTEL_TRACES_SAMPLER_ARG", "0.5")], 0.5),
            (
                &[
                    ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
                    ("TIDEGATE_TRACE_RATIO", "1"),
                ],
                1.0,
            ),
            (&[("OTEL_TRACES_SAMPLER", "parentbased_always_on")], 1.0),
            (&[("OTEL_TRACES_SAMPLER", "always_off")], 0.0),
        ] {
            let found = set(&[&[COLLECTOR], settings].concat()).ratio;
            assert!((found - expected).abs() < 1e-9, "{settings:?}: {found}");
        }
    }

    #[test]
    fn what_goes_to_aws_is_signed_for_its_service_and_region() {
        let place = |service: &str, region: &str| {
            Some(SigningScope {
                service: service.to_owned(),
                region: region.to_owned(),
            })
        };
        let xray = set(&[("TIDEGATE_XRAY", "on"), ("AWS_REGION", "eu-central-1")]);
        let own = "https://xray.eu-central-1.amazonaws.com/v1/traces";
        assert_eq!(xray.endpoint.as_str(), own);
        assert_eq!(xray.signing, place("xray", "eu-central-1"));
        for (host, expected) in [
            (own, place("xray", "eu-central-1")),
            (
                "https://vpce-1-2.xray.eu-west-1.vpce.amazonaws.com/v1/traces",
                place("xray", "eu-west-1"),
            ),
            ("https://amazonaws.com.example/v1/traces", None),
            ("http://127.0.0.1:4318", None),
        ] {
            let settings = set(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", host)]);
            assert_eq!(settings.signing, expected, "{host}");
        }
    }

    #[test]
    fn a_bad_setting_is_refused_by_name_with_what_is_allowed() {
        for (name, value, allowed) in [
            ("TIDEGATE_XRAY", "yes", "off or on"),
            ("TIDEGATE_XRAY", "on", "AWS_REGION"),
            ("TIDEGATE_TRACE_RATIO", "2", "0 to 1"),
            ("TIDEGATE_TRACE_RATIO", "NaN", "0 to 1"),
            ("TIDEGATE_TRACE_CORRELATION", "1", "off or on"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on"),
            ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "canary:4318",
                "http://127.0.0.1:4318",
            ),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1s", "milliseconds"),
        ] {
            let error = read(&[COLLECTOR, (name, value)]).err().unwrap();
            assert!(error.contains(name) && error.contains(allowed), "{error}");
            assert!(!error.contains("canary"), "{error}");
        }
    }
}
