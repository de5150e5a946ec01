//! Owns the public keys of an OIDC issuer: their URL, how long they are valid, and how often the issuer is asked.
//!
//! The keys are read when the first token arrives, then every ten minutes, and when a key is unknown. They are never read more
//! than once in 30 seconds, even if clients invent key names. If the issuer does not answer, its keys stay valid for six more
//! hours.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use reqwest::Url;
use serde_json::Value;
use tokio::time::Instant;

use crate::app::client::HttpClient;
use tidegate::{Error, Lookup};

const ISSUER: &str = "TIDEGATE_HTTP_JWT_ISSUER";
const KEYS: &str = "TIDEGATE_HTTP_JWT_KEYS";

/// The path where an issuer publishes the URL of its keys (OIDC Discovery 1.0, section 4).
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Keys are read again after this time. A key that the issuer has revoked is accepted up to this long.
const FRESH: Duration = Duration::from_mins(10);

/// Minimum time between two reads, whatever the reason.
const AGAIN: Duration = Duration::from_secs(30);

/// If the issuer does not answer, its keys stay valid for this long.
const KEPT: Duration = Duration::from_hours(6);

/// Time limit for each of the issuer's two answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum size of an answer of the issuer, in bytes. The next constant limits the number of stored keys.
const MOST_ANSWER: usize = 256 * 1024;
const MOST_KEYS: usize = 100;

/// RSA keys with less than 2048 bits are not accepted (RFC 7518, section 3.3).
const LEAST_MODULUS: usize = 256;

/// A public key and its only signature algorithm.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) algorithm: Algorithm,
    pub(super) public: DecodingKey,
}

/// The result of looking up a key by its name.
pub(super) enum Found {
    Key(Arc<Key>),
    /// The issuer has no such key.
    Unknown,
    /// The issuer does not answer.
    Away,
}

/// An issuer of tokens.
pub(super) struct Issuer {
    name: String,
    /// The URL of the keys, if it is configured.
    keys: Option<Url>,
    http: HttpClient,
    held: Mutex<Held>,
    /// Of several tasks that need to ask the issuer, only one does.
    asking: tokio::sync::Mutex<()>,
}

/// The data read from an issuer.
#[derive(Default)]
struct Held {
    keys: HashMap<String, Arc<Key>>,
    read: Option<Instant>,
    asked: Option<Instant>,
}

/// How to answer a lookup.
enum Step {
    Answer(Found),
    /// Ask the issuer. If it does not answer, this key is accepted.
    Ask(Option<Arc<Key>>),
}

impl Held {
    fn step(&self, kid: &str, now: Instant) -> Step {
        let age = self.read.map(|read| now.saturating_duration_since(read));
        let age = age.filter(|age| *age < KEPT);
        let key = self.keys.get(kid).filter(|_| age.is_some()).cloned();
        let asked = self.asked.map(|asked| now.saturating_duration_since(asked));
        let may_ask = asked.is_none_or(|since| since >= AGAIN);
        match key {
            Some(key) if !may_ask || age.is_some_and(|age| age < FRESH) => {
                Step::Answer(Found::Key(key))
            }
            key if may_ask => Step::Ask(key),
            // The issuer answered the last request.
            _ if self.read.is_some() && self.read == self.asked => Step::Answer(Found::Unknown),
            _ => Step::Answer(Found::Away),
        }
    }
}

impl Issuer {
    /// Reads `TIDEGATE_HTTP_JWT_ISSUER`, and `TIDEGATE_HTTP_JWT_KEYS` for an issuer that does not publish the URL of its keys.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub(super) fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let must = "must be an https:// URL, or an http:// URL of this machine";
        let name = lookup(ISSUER).unwrap_or_default();
        if safe(&name).is_none() {
            return Err(Error::Config(format!("{ISSUER}: {must}, got {name:?}")));
        }
        let keys = lookup(KEYS).map(|text| {
            safe(&text).ok_or_else(|| Error::Config(format!("{KEYS}: {must}, got {text:?}")))
        });
        Ok(Self {
            name,
            keys: keys.transpose()?,
            http: HttpClient::default(),
            held: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        })
    }

    /// Returns the issuer's name, exactly as tokens contain it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key with this name, and asks the issuer if necessary.
    pub(super) async fn key(&self, kid: &str) -> Found {
        let good = match self.held().step(kid, Instant::now()) {
            Step::Answer(found) => return found,
            Step::Ask(good) => good,
        };
        let _one = match good {
            Some(key) => match self.asking.try_lock() {
                Ok(one) => one,
                Err(_) => return Found::Key(key),
            },
            None => self.asking.lock().await,
        };
        // Another task may have asked in the meantime.
        let now = Instant::now();
        let good = match self.held().step(kid, now) {
            Step::Answer(found) => return found,
            Step::Ask(good) => good,
        };
        self.held().asked = Some(now);
        match self.read().await {
            Ok(keys) => {
                let mut held = self.held();
                held.read = Some(now);
                held.keys = keys;
                held.keys
                    .get(kid)
                    .cloned()
                    .map_or(Found::Unknown, Found::Key)
            }
            Err(error) => {
                tracing::warn!(error, "the keys of the token issuer cannot be read");
                good.map_or(Found::Away, Found::Key)
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self) -> Result<HashMap<String, Arc<Key>>, String> {
        let url = match &self.keys {
            Some(url) => url.clone(),
            None => self.discover().await?,
        };
        let answer = self.get(url).await?;
        let listed = answer.get("keys").and_then(Value::as_array);
        let listed = listed.ok_or("its keys are no list `keys`")?;
        // The list may also contain keys of types that we do not accept.
        Ok(listed.iter().filter_map(key).take(MOST_KEYS).collect())
    }

    async fn discover(&self) -> Result<Url, String> {
        let base = self.name.trim_end_matches('/');
        let url = safe(&format!("{base}{DISCOVERY}")).ok_or("it has no such path")?;
        let answer = self.get(url).await?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str);
        if text("issuer") != Some(&self.name) {
            return Err("its `issuer` differs from the setting".to_owned());
        }
        let keys = text("jwks_uri").and_then(safe);
        keys.ok_or_else(|| "its `jwks_uri` is no https:// URL".to_owned())
    }

    async fn get(&self, url: Url) -> Result<Value, String> {
        let client = self.http.get(None).await;
        let client = client.map_err(|error| error.to_string())?;
        // The path of the URL is configured or comes from the issuer, and is not a secret.
        let failed = |error: reqwest::Error| error.to_string();
        let request = client.get(url).timeout(ANSWER_TIMEOUT);
        let mut response = request.send().await.map_err(failed)?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(format!("it answered {}", response.status().as_u16()));
        }
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if body.len() + part.len() > MOST_ANSWER {
                return Err(format!("its answer has more than {MOST_ANSWER} bytes"));
            }
            body.extend_from_slice(&part);
        }
        serde_json::from_slice(&body).map_err(|_| "its answer is not JSON".to_owned())
    }
}

/// Parses a URL that is protected against others on the network, without user and password.
fn safe(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let is_safe = url.scheme() == "https" || (url.scheme() == "http" && is_here);
    (is_safe && url.username().is_empty() && url.password().is_none()).then_some(url)
}

/// Returns a key of the list, if it can be used to check signatures.
fn key(listed: &Value) -> Option<(String, Arc<Key>)> {
    let jwk: Jwk = serde_json::from_value(listed.clone()).ok()?;
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        _ => return None,
    };
    let common = &jwk.common;
    let is_for_it = common.key_algorithm.is_none_or(|said| said == named);
    let signs = common.public_key_use.as_ref();
    let signs = signs.is_none_or(|said| *said == PublicKeyUse::Signature);
    let public = DecodingKey::from_jwk(&jwk).ok()?;
    let is_long = match public.kind() {
        DecodingKeyKind::RsaModulusExponent { n, .. } => n.len() >= LEAST_MODULUS,
        DecodingKeyKind::SecretOrDer(_) => true,
    };
    let kid = common.key_id.clone()?;
    let key = Key { algorithm, public };
    (is_for_it && signs && is_long).then(|| (kid, Arc::new(key)))
}

#[cfg(test)]
mod tests {
    use axum::response::Redirect;
    use axum::{Json, Router, routing};
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;

    fn listed(kid: &str) -> Value {
        json!({"kty": "RSA", "kid": kid, "n": "w".repeat(342), "e": "AQAB"})
    }

    /// Returns keys that were read at this time.
    fn held(kids: &[&str], read: Instant) -> Held {
        Held {
            keys: kids.iter().filter_map(|kid| key(&listed(kid))).collect(),
            read: Some(read),
            asked: Some(read),
        }
    }

    fn told(step: &Step) -> &'static str {
        match step {
            Step::Answer(Found::Key(_)) => "key",
            Step::Answer(Found::Unknown) => "unknown",
            Step::Answer(Found::Away) => "away",
            Step::Ask(Some(_)) => "ask, or key",
            Step::Ask(None) => "ask",
        }
    }

    #[test]
    fn keys_are_read_again_in_time_and_for_an_unknown_name_and_never_all_the_time() {
        let start = Instant::now();
        assert_eq!(told(&Held::default().step("a", start)), "ask");
        let held = held(&["a"], start);
        let second = Duration::from_secs(1);
        for (after, known, unknown) in [
            (Duration::ZERO, "key", "unknown"),
            (AGAIN.saturating_sub(second), "key", "unknown"),
            (AGAIN, "key", "ask"),
            (FRESH, "ask, or key", "ask"),
            (KEPT.saturating_sub(second), "ask, or key", "ask"),
            (KEPT, "ask", "ask"),
        ] {
            let now = start + after;
            let steps = (held.step("a", now), held.step("b", now));
            assert_eq!(
                (told(&steps.0), told(&steps.1)),
                (known, unknown),
                "{after:?}"
            );
        }
    }

    #[test]
    fn while_the_issuer_is_away_its_keys_are_kept_and_nobody_is_called_unknown() {
        let start = Instant::now();
        for (asked_after, known) in [(FRESH, "key"), (KEPT, "away")] {
            let mut held = held(&["a"], start);
            // The issuer did not answer.
            held.asked = Some(start + asked_after);
            let now = start + asked_after + Duration::from_secs(1);
            let steps = (held.step("a", now), held.step("b", now));
            assert_eq!((told(&steps.0), told(&steps.1)), (known, "away"));
            assert_eq!(told(&held.step("b", now + AGAIN)), "ask");
        }
    }

    #[test]
    fn only_public_keys_to_check_our_signatures_with_are_taken() {
        let point = "A".repeat(43);
        let ec = json!({"kty": "EC", "crv": "P-256", "kid": "a", "x": point, "y": point});
        assert_eq!(key(&ec).unwrap().1.algorithm, Algorithm::ES256);
        assert_eq!(key(&listed("a")).unwrap().1.algorithm, Algorithm::RS256);
        let with = |name: &str, value: &str| {
            let mut changed = listed("a");
            changed[name] = json!(value);
            changed
        };
        assert!(key(&with("alg", "RS256")).is_some() && key(&with("use", "sig")).is_some());
        let mut nameless = listed("a");
        nameless.as_object_mut().unwrap().remove("kid");
        for other in [
            with("alg", "RS512"),
            with("alg", "HS256"),
            with("alg", "RSA-OAEP"),
            with("use", "enc"),
            with("n", &"w".repeat(171)),
            with("n", "?"),
            nameless,
            json!({"kty": "oct", "kid": "a", "k": "c2VjcmV0"}),
            json!({"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": point}),
            json!({"kty": "EC", "crv": "P-384", "kid": "a", "x": point, "y": point}),
            json!({"kty": "later", "kid": "a"}),
            json!("key"),
        ] {
            assert!(key(&other).is_none(), "{other}");
        }
    }

    #[test]
    fn an_issuer_is_asked_where_nobody_can_answer_in_its_place() {
        for good in [
            "https://issuer.example.org/realm",
            "http://127.0.0.1:8080",
            "http://localhost/a",
            "http://[::1]:1",
        ] {
            assert!(safe(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "issuer",
            "http://issuer.example.org",
            "http://127.0.0.1.example.org",
            "http://0.0.0.0",
            "ftp://127.0.0.1",
            "https://user:password@issuer.example.org",
            "file:///etc/passwd",
        ] {
            assert!(safe(bad).is_none(), "{bad}");
        }
    }

    /// Serves these routes and a description of an issuer whose keys are at `keys`, and returns an issuer that uses it.
    async fn issuer(keys: &str, routes: Router) -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let described = json!({"issuer": url, "jwks_uri": keys.replace("{url}", &url)});
        let described = routing::get(async move || Json(described));
        let serving = axum::serve(listener, routes.route(DISCOVERY, described));
        tokio::spawn(serving.into_future());
        Issuer::from_settings(&|name| (name == ISSUER).then(|| url.clone())).unwrap()
    }

    /// Advances past the minimum time between two reads.
    fn time_passes(issuer: &Issuer) {
        let mut held = issuer.held();
        held.asked = held.asked.and_then(|asked| asked.checked_sub(AGAIN));
        held.read = held.asked;
    }

    #[tokio::test]
    async fn a_new_key_is_found_and_one_that_was_taken_back_is_gone() {
        let kids = Arc::new(Mutex::new(vec!["a"]));
        let served = Arc::clone(&kids);
        let keys = routing::get(async move || {
            let keys: Vec<Value> = served
                .lock()
                .unwrap()
                .iter()
                .map(|kid| listed(kid))
                .collect();
            Json(json!({"keys": keys}))
        });
        let issuer = issuer("{url}/keys", Router::new().route("/keys", keys)).await;
        let told = async |kid| told(&Step::Answer(issuer.key(kid).await));
        assert_eq!((told("a").await, told("b").await), ("key", "unknown"));
        *kids.lock().unwrap() = vec!["a", "b"];
        assert_eq!(told("b").await, "unknown", "too soon");
        time_passes(&issuer);
        assert_eq!((told("b").await, told("a").await), ("key", "key"));
        *kids.lock().unwrap() = vec!["b"];
        time_passes(&issuer);
        assert_eq!(told("c").await, "unknown");
        assert_eq!((told("a").await, told("b").await), ("unknown", "key"));
    }

    #[tokio::test]
    async fn an_answer_of_an_issuer_is_bounded_and_leads_nowhere_else() {
        let good = || routing::get(async || Json(json!({"keys": [listed("a")]})));
        let long = format!("{{\"keys\": [], \"x\": \"{}\"}}", "x".repeat(MOST_ANSWER));
        let routes = || {
            let long = long.clone();
            Router::new()
                .route("/good", good())
                .route("/long", routing::get(async move || long))
                .route(
                    "/moved",
                    routing::get(async || Redirect::temporary("/good")),
                )
                .route("/odd", routing::get(async || "[]"))
                .route("/text", routing::get(async || "canary"))
        };
        for (keys, says) in [
            ("{url}/good", ""),
            ("{url}/long", "more than"),
            ("{url}/moved", "answered 307"),
            ("{url}/odd", "no list"),
            ("{url}/text", "not JSON"),
            ("{url}/none", "answered 404"),
            ("http://issuer.example.org/good", "no https:// URL"),
            ("/good", "no https:// URL"),
        ] {
            let issuer = issuer(keys, routes()).await;
            let why = issuer.read().await.err().unwrap_or_default();
            assert!(
                why.contains(says) && why.is_empty() == says.is_empty(),
                "{keys}: {why}"
            );
            assert!(!why.contains("canary"));
            let found = told(&Step::Answer(issuer.key("a").await));
            assert_eq!(
                found,
                if says.is_empty() { "key" } else { "away" },
                "{keys}"
            );
        }
        let mut double = issuer("{url}/good", routes()).await;
        double.name.push('/');
        let why = double.read().await.unwrap_err();
        assert!(why.contains("differs from the setting"), "{why}");
    }
}
