//! Owns what each caller may do: the settings for authentication, and the gate in front of every route except
//! the operational ones. It knows credentials but no routes. The routes ask [`Caller`] what a caller may
//! access.
//!
//! A known caller always has a client, the legal entity on whose behalf it calls. The credential takes
//! precedence over the request. Without authentication, a system in front of this one must know the callers,
//! and the contents of a request are trusted.

mod claims;
mod keys;
pub mod verb;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use tidegate::{Database, Error, Lookup};
use tracing::Span;
use tracing::field::display;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{OpenApi, RefOr};
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::limits::{IN_FLIGHT_OF_ONE, LOOK_UPS_OF_ONE};
use super::problem::Problem;
use super::{CONNECTION_WAIT, connection, limits};
use claims::ClaimNames;
use keys::KeyDigest;
use tidegate_http::{FairQuota, Peer, Refusals};

/// The setting for authentication.
const AUTH: &str = "TIDEGATE_HTTP_AUTH";

/// The scheme of RFC 6750, and the name of the only security scheme in the OpenAPI document.
const BEARER: &str = "bearer";

/// A permission of a credential.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope(&'static str);

impl Scope {
    /// Medical jobs, and the stored data of patients.
    pub const JOBS: Self = Self("jobs");
    /// Confirming approvals: for who checks the passwords of patients.
    pub const APPROVALS: Self = Self("approvals");
    /// Submitting forms, and reporting that a letter was viewed.
    pub const FORMS: Self = Self("forms");
    /// Notices of the case system: letters, cancellations and declines.
    pub const LETTERS: Self = Self("letters");
    /// Reading metrics.
    pub const METRICS: Self = Self("metrics");

    const NAMES: [&str; 5] = ["jobs", "approvals", "forms", "letters", "metrics"];
}

/// On whose behalf a request is made, as far as its credential says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Caller {
    /// The legal entity. Every known caller has one.
    #[serde(rename = "client_id")]
    pub client: Option<Uuid>,
    /// The user.
    #[serde(rename = "user_id")]
    pub user: Option<Uuid>,
    /// The only patient that the caller may access.
    pub patient: Option<Uuid>,
}

impl Caller {
    /// Adds the ids of the credential to a request that omits them.
    ///
    /// # Errors
    /// 403 with the name of a field that contradicts the credential. A value that is not an id is left to the
    /// check of the request.
    pub(super) fn speak_for(self, wanted: &mut Value, names: &[&str]) -> Result<(), Problem> {
        let Value::Object(fields) = wanted else {
            return Ok(());
        };
        let own = [
            ("client_id", self.client),
            ("user_id", self.user),
            ("patient_id", self.patient),
        ];
        for (name, id) in own.into_iter().filter(|(name, _)| names.contains(name)) {
            let Some(id) = id else { continue };
            let said = fields.entry(name).or_insert_with(|| id.to_string().into());
            let said = said.as_str().and_then(|text| Uuid::try_parse(text).ok());
            if said.is_some_and(|said| said != id) {
                let needed = "must equal the value in the credential, or be left out";
                return Err(forbidden(format!("{name}: {needed}")));
            }
        }
        Ok(())
    }

    /// Requires that the caller may access this patient.
    ///
    /// # Errors
    /// 403 if the credential is for another patient.
    pub(super) fn reach(self, patient: Uuid) -> Result<(), Problem> {
        if self.patient.is_some_and(|own| own != patient) {
            return Err(forbidden("the credential is for another patient"));
        }
        Ok(())
    }
}

/// A caller and the permissions of its credential. Scopes that this program does not know permit nothing.
#[derive(Debug, Clone, Default, Deserialize)]
struct Known {
    /// The row of the key or the principal, if it is one.
    id: Option<i64>,
    #[serde(flatten)]
    caller: Caller,
    scopes: Vec<String>,
}

impl Known {
    /// Puts the ids of the caller into the request's line of the log.
    fn record(&self) {
        let span = Span::current();
        for (name, id) in [
            ("client_id", self.caller.client),
            ("user_id", self.caller.user),
        ] {
            span.record(name, id.map(display));
        }
        span.record("key_id", self.id);
    }
}

/// The most keys of which an interface remembers that they were good.
const MOST_REMEMBERED: usize = 10_000;

/// Which callers are permitted. Clones share the counts of requests at work.
#[derive(Clone)]
pub struct Access {
    /// Whether no setting says how callers are authenticated. Then none is.
    undecided: bool,
    /// Whether API keys are accepted.
    keys: bool,
    /// The issuer's names of the claims that a gateway in front has verified, if claims are believed.
    claims: Option<Arc<ClaimNames>>,
    /// Whether the IAM identity that has signed the request is looked up.
    iam: bool,
    /// The places for requests of each client.
    at_work: FairQuota<Uuid>,
    /// The places for look-ups of credentials from each address, except for those that were good before.
    look_ups: FairQuota<Option<IpAddr>>,
    /// The clients of credentials that were good when they were last looked up.
    good: Arc<Mutex<BTreeMap<KeyDigest, Uuid>>>,
    refusals: Refusals,
}

impl Access {
    /// Permits everyone, because a system in front of this one knows the callers.
    #[must_use]
    pub fn open() -> Self {
        Self {
            undecided: false,
            keys: false,
            claims: None,
            iam: false,
            at_work: FairQuota::new(IN_FLIGHT_OF_ONE),
            look_ups: FairQuota::new(LOOK_UPS_OF_ONE),
            good: Arc::default(),
            refusals: Refusals::default(),
        }
    }

    /// Reads `TIDEGATE_HTTP_AUTH` and the settings that belong to it.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let mut access = Self::open();
        let said = lookup(AUTH);
        access.undecided = said.is_none();
        let ways = said.as_deref().filter(|said| *said != "none");
        for way in ways.into_iter().flat_map(|ways| ways.split(',')) {
            match way.trim() {
                "keys" => access.keys = true,
                "iam" => access.iam = true,
                "jwt" => access.claims = Some(Arc::new(ClaimNames::from_settings(lookup)?)),
                _ => {
                    let allowed =
                        "must be none, or one or more of keys, jwt and iam, such as keys,jwt";
                    let said = said.as_deref().unwrap_or_default();
                    return Err(Error::Config(format!("{AUTH}: {allowed}, got {said:?}")));
                }
            }
        }
        Ok(access)
    }

    /// Whether there is no authentication although no setting says that this is intended.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.undecided
    }

    /// Whether AWS in front must verify the callers' tokens or identities.
    #[must_use]
    pub fn needs_gateway(&self) -> bool {
        self.claims.is_some() || self.iam
    }

    fn asks(&self) -> bool {
        self.keys || self.needs_gateway()
    }

    /// The caller of a request. Verified claims come first: whoever has them has no other credential.
    async fn known(&self, database: &Database, request: &Parts) -> Result<Known, Problem> {
        let extensions = &request.extensions;
        if !self.asks() {
            return Ok(Known {
                scopes: Scope::NAMES.map(ToOwned::to_owned).to_vec(),
                ..Known::default()
            });
        }
        if let Some(names) = &self.claims
            && let Some(claims) = claims::verified(extensions)
        {
            return names.read(&claims).ok_or_else(|| {
                not_valid("its claims do not name the client, or an id in them is not a UUID")
            });
        }
        if self.iam {
            if let Some(principal) = claims::identity(extensions) {
                let found = self.look_up(database, request, &principal).await?;
                let why = || format!("{principal} is no caller of this service, or no longer");
                return found.ok_or_else(|| forbidden(why()));
            }
            if !self.keys && self.claims.is_none() {
                return Err(unknown("a request that is signed for AWS is required"));
            }
        }
        let token = bearer(&request.headers)?;
        if self.keys && keys::is_key(token) {
            let found = self.look_up(database, request, token).await?;
            return found.ok_or_else(|| not_valid("it is unknown, expired or revoked"));
        }
        let why = "this service does not accept this kind of credential";
        Err(not_valid(why))
    }

    /// Looks up a key or a principal. The look-ups of strangers at one address wait for each other. The
    /// look-up of a credential that was good before takes one of its client's places.
    async fn look_up(
        &self,
        database: &Database,
        request: &Parts,
        credential: &str,
    ) -> Result<Option<Known>, Problem> {
        let digest = keys::digest(credential);
        let good_for = self.good().get(&digest).copied();
        let _turn = if let Some(client) = good_for {
            let share = self.at_work.take(client);
            share.ok_or_else(|| Problem::of(StatusCode::TOO_MANY_REQUESTS))?
        } else {
            let peer: Peer = request.extensions.get().copied().unwrap_or_default();
            let turn = self.look_ups.wait(peer.network(), CONNECTION_WAIT).await;
            let busy = "too many credentials of this address are looked up; try again";
            turn.ok_or_else(|| Problem::unavailable(busy))?
        };
        let mut connection = connection(database).await?;
        let found = keys::find(&mut connection, &digest).await?;
        self.remember(digest, found.as_ref().and_then(|known| known.caller.client));
        Ok(found)
    }

    fn remember(&self, digest: KeyDigest, client: Option<Uuid>) {
        let mut good = self.good();
        match client {
            Some(_) if good.len() >= MOST_REMEMBERED && !good.contains_key(&digest) => good.clear(),
            Some(client) => drop(good.insert(digest, client)),
            None => drop(good.remove(&digest)),
        }
    }

    fn good(&self) -> MutexGuard<'_, BTreeMap<KeyDigest, Uuid>> {
        self.good.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds authentication to the OpenAPI document.
pub(super) fn describe(access: &Access, document: &mut OpenApi) {
    if !access.asks() {
        return;
    }
    let mut scheme = Http::new(HttpAuthScheme::Bearer);
    let mut ways = Vec::new();
    if access.keys {
        ways.push("an API key of this service");
    }
    if access.iam {
        ways.push(
            "a signature of an AWS identity (Signature Version 4) that is a caller of this service",
        );
    }
    if access.claims.is_some() {
        ways.push("a token that the gateway in front verifies");
        scheme.bearer_format = Some("JWT".to_owned());
    }
    scheme.description = Some(ways.join(", or "));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, SecurityScheme::Http(scheme));
    for schema in components.schemas.values_mut() {
        without_client(schema);
    }
}

/// Makes the client optional in a schema, because a known caller has one.
fn without_client(schema: &mut RefOr<Schema>) {
    match schema {
        RefOr::T(Schema::Object(object)) if object.properties.contains_key("user_id") => {
            object.required.retain(|name| name != "client_id");
        }
        RefOr::T(Schema::AllOf(parts)) => parts.items.iter_mut().for_each(without_client),
        _ => {}
    }
}

/// The gate in front of some routes.
#[derive(Clone)]
pub(super) struct Gate {
    pub(super) database: Database,
    pub(super) access: Access,
}

impl Gate {
    /// Refuses requests to these routes if the credential lacks `scope`.
    pub(super) fn before<S: Clone + Send + Sync + 'static>(
        &self,
        scope: Scope,
        mut routes: OpenApiRouter<S>,
    ) -> OpenApiRouter<S> {
        if self.access.asks() {
            let document = routes.get_openapi_mut();
            for item in document.paths.paths.values_mut() {
                let operations = [&mut item.get, &mut item.post];
                for operation in operations.into_iter().flatten() {
                    let needed = SecurityRequirement::new(BEARER, [scope.0]);
                    operation.security = Some(vec![needed]);
                }
            }
        }
        let state = (self.clone(), scope);
        // Only known callers take a place.
        let routes = limits::bounded(routes).layer(from_fn_with_state(state, let_in));
        limits::uncached(routes)
    }
}

async fn let_in(
    State((Gate { database, access }, Scope(scope))): State<(Gate, Scope)>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let known = access.known(&database, &parts).await;
    let known = known.inspect_err(|problem| {
        if problem.is_about_the_credential() {
            access.refusals.note(&parts.extensions);
        }
    })?;
    known.record();
    let Known { caller, scopes, .. } = known;
    if !scopes.iter().any(|one| one == scope) {
        let problem = forbidden(format!("the credential does not have the scope {scope}"));
        let challenge = format!("error=\"insufficient_scope\", scope=\"{scope}\"");
        return Err(problem.challenge(&challenge));
    }
    // Until the answer: a client with many slow requests has only its own share of the places.
    let share = caller.client.map(|client| access.at_work.take(client));
    if matches!(share, Some(None)) {
        return Err(Problem::of(StatusCode::TOO_MANY_REQUESTS));
    }
    parts.extensions.insert(caller);
    Ok(next.run(Request::from_parts(parts, body)).await)
}

/// The only credential of a request.
fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut sent = headers.get_all(AUTHORIZATION).iter();
    let Some(first) = sent.next() else {
        let message = "a credential is required, as the header `authorization: Bearer …`";
        return Err(unknown(message).challenge(""));
    };
    let must = "it must be exactly one header `authorization: Bearer …`";
    let words = first.to_str().ok().and_then(|text| text.split_once(' '));
    match (words, sent.next()) {
        (Some((scheme, token)), None) if scheme.eq_ignore_ascii_case(BEARER) => Ok(token.trim()),
        _ => Err(not_valid(must)),
    }
}

fn unknown(message: impl Into<String>) -> Problem {
    Problem::because(StatusCode::UNAUTHORIZED, message)
}

/// `why` helps an honest caller to find the fault, but does not reveal which part of a guess was right.
fn not_valid(why: &str) -> Problem {
    unknown(format!("the credential is not valid: {why}")).challenge("error=\"invalid_token\"")
}

fn forbidden(message: impl Into<String>) -> Problem {
    Problem::because(StatusCode::FORBIDDEN, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn access(auth: &'static str) -> Result<Access, Error> {
        Access::from_settings(&|name| (name == AUTH).then(|| auth.to_owned()))
    }

    #[test]
    fn how_callers_are_known_is_said_or_undecided() {
        assert!(Access::from_settings(&|_| None).unwrap().is_undecided());
        let none = access("none").unwrap();
        assert!(!none.is_undecided() && !none.asks());
        let keys = access("keys").unwrap();
        assert!(!keys.is_undecided() && keys.asks());
        for odd in ["yes", "keys,", "none,keys", "keys,none", "Keys"] {
            let error = access(odd).err().unwrap().to_string();
            assert!(error.contains("TIDEGATE_HTTP_AUTH: must be"), "{error}");
        }
    }

    #[test]
    fn a_request_says_what_its_credential_says_or_nothing() {
        let [ours, theirs] = [1, 2].map(Uuid::from_u128);
        let caller = Caller {
            client: Some(ours),
            user: None,
            patient: Some(ours),
        };
        let all = &["client_id", "user_id", "patient_id"][..];
        let mut left_out = json!({"user_id": theirs});
        caller.speak_for(&mut left_out, all).unwrap();
        let filled = json!({"client_id": ours, "user_id": theirs, "patient_id": ours});
        assert_eq!(left_out, filled);
        caller.speak_for(&mut left_out, all).unwrap();
        assert_eq!(left_out, filled, "the same said is no contradiction");
        for (wanted, names, is_refused) in [
            (json!({"client_id": theirs}), all, true),
            (json!({"patient_id": theirs}), all, true),
            (json!({"patient_id": theirs}), &all[..2], false),
            // The check of the request refuses this.
            (json!({"client_id": 7}), all, false),
            (json!({"client_id": null}), all, false),
            (json!([]), all, false),
        ] {
            let spoken = caller.speak_for(&mut wanted.clone(), names);
            assert_eq!(spoken.is_err(), is_refused, "{wanted}");
        }
        assert!(caller.reach(ours).is_ok() && caller.reach(theirs).is_err());
        assert!(Caller::default().reach(theirs).is_ok());
    }
}
