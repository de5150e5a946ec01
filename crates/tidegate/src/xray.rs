//! Owns the export of handled events to AWS X-Ray: one segment for each attempt at an event that was
//! published under a sampled trace, one UDP datagram to the X-Ray daemon for each segment. Collectors of
//! `OpenTelemetry` take the same by their receiver `awsxray`.
//!
//! A segment is told once and never asked after: one that cannot be sent at once is dropped, and no
//! event waits for it. It says what the log's lines say, and so neither payload nor group nor a
//! handler's own words, which may name a person (I9).
//!
//! The protocol: <https://docs.aws.amazon.com/xray/latest/devguide/xray-api-sendingdata.html#xray-api-daemon>,
//! the segment: <https://docs.aws.amazon.com/xray/latest/devguide/xray-api-segmentdocuments.html>.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::config::Lookup;
use crate::error::Error;
use crate::lease::LeasedEvent;
use crate::outcome::Status;
use crate::trace::TraceContext;

const HEADER: &str = "{\"format\":\"json\",\"version\":1}\n";

/// Where the daemon listens unless something else is said.
const DAEMON: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2000);

/// Reads `TIDEGATE_XRAY`: `off` (the default) or `on`; and for `on` the daemon's address,
/// `AWS_XRAY_DAEMON_ADDRESS`, which Lambda sets, by default `127.0.0.1:2000`.
///
/// # Errors
/// [`Error::Config`] names the variable and what is allowed.
pub fn daemon(lookup: Lookup<'_>) -> Result<Option<SocketAddr>, Error> {
    match lookup("TIDEGATE_XRAY").as_deref() {
        None | Some("off") => return Ok(None),
        Some("on") => {}
        Some(other) => {
            return Err(Error::Config(format!(
                "TIDEGATE_XRAY: must be off or on, got {other:?}"
            )));
        }
    }
    let Some(text) = lookup("AWS_XRAY_DAEMON_ADDRESS") else {
        return Ok(Some(DAEMON));
    };
    // X-Ray's libraries know a second form, in which another port answers questions about sampling.
    let mut parts = text.split_whitespace();
    let address = parts.find_map(|part| part.strip_prefix("udp:"));
    // No names: looking one up may take seconds, and is no reason for a drain to wait.
    address.unwrap_or(&text).parse().map(Some).map_err(|_| {
        Error::Config(format!(
            "AWS_XRAY_DAEMON_ADDRESS: must be an IP address and a port such as {DAEMON}, or tcp:{DAEMON} udp:{DAEMON}, got {text:?}"
        ))
    })
}

/// An attempt at an event that has ended, to be shown as a segment of its trace.
pub(crate) struct Segment<'a> {
    /// Which event.
    pub event: &'a LeasedEvent,
    /// How it ended; `None` when it will be retried.
    pub status: Option<Status>,
    /// It will be, and nothing went wrong.
    pub snoozed: bool,
    /// The first error's code; empty when there is none.
    pub code: &'a str,
    /// How long it took.
    pub took: Duration,
}

/// The way to the daemon.
pub(crate) struct Exporter {
    socket: UdpSocket,
    daemon: SocketAddr,
}

impl Exporter {
    /// Opens a socket that never blocks; `None`, and a line in the log, when there is none to be had.
    pub fn open(daemon: SocketAddr) -> Option<Self> {
        let any: IpAddr = match daemon {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Not connected: a daemon that is away for a moment would fail the segment after as well.
        let opened = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        opened
            .inspect_err(|error| {
                tracing::warn!(%error, "no socket for traces; this drain exports none");
            })
            .ok()
            .map(|socket| Self { socket, daemon })
    }

    /// Sends an attempt's segment, if its trace is a sampled one, or drops it.
    pub fn send(&self, position: &TraceContext, segment: &Segment<'_>) {
        if !position.is_sampled() {
            return;
        }
        let document = document(position, segment, SystemTime::now());
        let datagram = format!("{HEADER}{document}");
        if let Err(error) = self.socket.send_to(datagram.as_bytes(), self.daemon) {
            tracing::debug!(event.id = segment.event.lease.id, %error, "trace segment dropped");
        }
    }
}

/// A segment document. It stays far below the 64 KB that a datagram takes: its longest texts are a kind
/// and a code of at most 100 characters each.
fn document(position: &TraceContext, segment: &Segment<'_>, ended: SystemTime) -> Value {
    let ended = ended.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (time, random) = position.trace_id().split_at(8);
    let event = segment.event;
    let mut document = json!({
        "name": name(&event.kind),
        "id": position.span_id(),
        "trace_id": format!("1-{time}-{random}"),
        "start_time": ended.saturating_sub(segment.took).as_secs_f64(),
        "end_time": ended.as_secs_f64(),
        "annotations": {
            "kind": event.kind,
            "event_id": event.lease.id,
            "attempt": event.attempts,
        },
    });
    if let Some(parent) = position.parent_span_id() {
        document["parent_id"] = json!(parent);
    }
    // As of HTTP's statuses: an error is the request's own, a fault the service's.
    let (mark, meaning) = match segment.status {
        Some(Status::Completed) => return document,
        Some(Status::CompletedWithErrors) => ("error", "rejected by a handler"),
        Some(Status::Failed) => ("fault", "failed for good"),
        None if segment.snoozed => return document,
        None => ("fault", "failed, will be retried"),
    };
    document[mark] = json!(true);
    let id = format!("{:016x}", fastrand::u64(1..));
    document["cause"] =
        json!({"exceptions": [{"id": id, "type": segment.code, "message": meaning}]});
    document
}

/// The kind, which makes X-Ray's map one of the events' flow, in the characters that a name may have.
fn name(kind: &str) -> String {
    let allowed = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_.:/%&#=+\\-@".contains(c);
    kind.chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[(&str, &str)]) -> Result<Option<SocketAddr>, String> {
        let lookup = |name: &str| {
            let found = settings.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        daemon(&lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn export_is_off_unless_it_is_asked_for() {
        let address = ("AWS_XRAY_DAEMON_ADDRESS", "nonsense");
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[address]), Ok(None));
        assert_eq!(read(&[address, ("TIDEGATE_XRAY", "off")]), Ok(None));
        assert_eq!(read(&[("TIDEGATE_XRAY", "on")]), Ok(Some(DAEMON)));
    }

    #[test]
    fn the_daemon_is_found_where_lambda_or_a_library_would_say_it_is() {
        for (address, expected) in [
            ("169.254.79.129:2000", "169.254.79.129:2000"),
            ("[::1]:2001", "[::1]:2001"),
            ("tcp:127.0.0.1:2000 udp:127.0.0.2:2001", "127.0.0.2:2001"),
            ("udp:127.0.0.2:2001 tcp:127.0.0.1:2000", "127.0.0.2:2001"),
        ] {
            let found = read(&[
                ("TIDEGATE_XRAY", "on"),
                ("AWS_XRAY_DAEMON_ADDRESS", address),
            ]);
            assert_eq!(found, Ok(Some(expected.parse().unwrap())), "{address}");
        }
    }

    #[test]
    fn a_bad_setting_is_refused_by_name_with_what_is_allowed() {
        let error = read(&[("TIDEGATE_XRAY", "yes")]).unwrap_err();
        assert!(
            error.contains("TIDEGATE_XRAY: must be off or on"),
            "{error}"
        );
        for address in ["localhost:2000", "127.0.0.1", "tcp:127.0.0.1:2000", "udp:x"] {
            let settings = [
                ("TIDEGATE_XRAY", "on"),
                ("AWS_XRAY_DAEMON_ADDRESS", address),
            ];
            let error = read(&settings).unwrap_err();
            assert!(
                error.contains("AWS_XRAY_DAEMON_ADDRESS: must be an IP address and a port")
                    && error.contains(address),
                "{error}"
            );
        }
    }

    #[test]
    fn a_kind_becomes_a_name_that_x_ray_takes() {
        assert_eq!(name("order_placed"), "order_placed");
        assert_eq!(name("shop/größe.geändert!*"), "shop/größe.geändert__");
    }
}
