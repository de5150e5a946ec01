//! Owns what AWS in front says of a caller: the claims of a token that an authorizer has verified, or the IAM
//! identity that has signed the request.
//!
//! They are believed only in the request context of the Lambda event, which AWS writes and no caller
//! can. A header says nothing, and under `tidegate serve` there is neither.

use std::collections::HashMap;

use axum::http::Extensions;
use lambda_http::aws_lambda_events::apigw::ApiGatewayRequestAuthorizer as Authorizer;
use lambda_http::request::RequestContext;
use serde_json::Value;
use tidegate::{Error, Lookup};
use uuid::Uuid;

use super::{Caller, Known};

const CLAIMS: &str = "TIDEGATE_HTTP_JWT_CLAIMS";

type Claims = HashMap<String, Value>;

fn authorizer(extensions: &Extensions) -> Option<&Authorizer> {
    let RequestContext::ApiGatewayV2(context) = extensions.get()? else {
        return None;
    };
    context.authorizer.as_ref()
}

/// The IAM identity that AWS has verified, as [`principal`] writes it.
pub(super) fn identity(extensions: &Extensions) -> Option<String> {
    let arn = authorizer(extensions)?.iam.as_ref()?.user_arn.as_ref()?;
    Some(principal(arn).unwrap_or_else(|| arn.clone()))
}

/// The ARN of a role or a user without its path; `None` for the ARN of anything else. A session has the ARN
/// of its role, because the caller chooses the session's name.
pub(super) fn principal(arn: &str) -> Option<String> {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    let ["arn", partition, service, "", account, resource] = parts[..] else {
        return None;
    };
    let names: Vec<&str> = resource.split('/').collect();
    let (kind, name) = match (service, &names[..]) {
        ("sts", ["assumed-role", role, _]) => ("role", role),
        ("iam", [kind @ ("role" | "user"), .., name]) => (*kind, name),
        _ => return None,
    };
    let is_account = account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit());
    (is_account && !name.is_empty())
        .then(|| format!("arn:{partition}:iam::{account}:{kind}/{name}"))
}

/// The claims that a JWT authorizer has verified, or what a Lambda authorizer says.
pub(super) fn verified(extensions: &Extensions) -> Option<Claims> {
    let authorizer = authorizer(extensions)?;
    let claims = match &authorizer.jwt {
        Some(jwt) => {
            let texts = jwt.claims.iter();
            texts
                .map(|(name, text)| (name.clone(), text.as_str().into()))
                .collect()
        }
        None => authorizer.fields.clone(),
    };
    Some(claims).filter(|claims| !claims.is_empty())
}

/// Our own names of the claims.
const NAMES: [&str; 4] = ["client_id", "user_id", "patient_id", "scope"];

/// The names that the issuer gives the claims, in the order of [`NAMES`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClaimNames([String; 4]);

impl ClaimNames {
    /// Reads `TIDEGATE_HTTP_JWT_CLAIMS`, such as `client_id=org,user_id=sub`. A claim that is not listed
    /// keeps its own name.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub(super) fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        let said = lookup(CLAIMS).unwrap_or_default();
        Self::parse(&said).ok_or_else(|| {
            let must = "must be pairs NAME=CLAIM such as client_id=org,user_id=sub, with the names client_id, user_id, patient_id and scope";
            Error::Config(format!("{CLAIMS}: {must}, got {said:?}"))
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut names = NAMES.map(str::to_owned);
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (ours, name) = pair.split_once('=').map(|(a, b)| (a.trim(), b.trim()))?;
            let at = NAMES.iter().position(|known| *known == ours)?;
            if name.is_empty() {
                return None;
            }
            name.clone_into(&mut names[at]);
        }
        Some(Self(names))
    }

    /// Reads the caller from the claims. Returns `None` if they name no client, or if an id is not a UUID.
    pub(super) fn read(&self, claims: &Claims) -> Option<Known> {
        let [client, user, patient, scope] = &self.0;
        let id = |name: &String| match claims.get(name) {
            None | Some(Value::Null) => Some(None),
            Some(said) => Uuid::try_parse(said.as_str()?).ok().map(Some),
        };
        let caller = Caller {
            client: Some(id(client)??),
            user: id(user)?,
            patient: id(patient)?,
        };
        // One text with several words, as in RFC 8693. API Gateway writes a list as `[jobs forms]`.
        let scopes = match claims.get(scope) {
            Some(Value::String(words)) => words.split([' ', ',', '[', ']']).collect(),
            Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
            _ => Vec::<&str>::new(),
        };
        let scopes = scopes.into_iter().map(ToOwned::to_owned).collect();
        Some(Known {
            id: None,
            caller,
            scopes,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claims(value: Value) -> Claims {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn claims_are_found_under_the_names_that_the_issuer_gives_them() {
        let [client, user] = [1, 2].map(Uuid::from_u128);
        let claims = claims(
            json!({"client_id": client, "user_id": null, "org": user, "sub": client,
            "scope": "jobs canary forms", "scp": ["letters", 7], "groups": "[jobs letters]"}),
        );
        let plain = ClaimNames::parse("").unwrap().read(&claims).unwrap();
        let expected = Caller {
            client: Some(client),
            ..Caller::default()
        };
        assert_eq!(plain.caller, expected);
        assert_eq!(plain.scopes, ["jobs", "canary", "forms"]);
        let renamed = ClaimNames::parse("client_id=org, user_id=sub,scope=scp");
        let renamed = renamed.unwrap().read(&claims).unwrap();
        let ids = (renamed.caller.client, renamed.caller.user);
        assert_eq!(ids, (Some(user), Some(client)));
        assert_eq!(renamed.scopes, ["letters"]);
        let listed = ClaimNames::parse("scope=groups").unwrap().read(&claims);
        let listed = listed.unwrap().scopes;
        assert!(listed.contains(&"jobs".to_owned()) && listed.contains(&"letters".to_owned()));
        for odd in ["client_id", "client=org", "client_id=", "aud=x"] {
            let lookup = |name: &str| (name == CLAIMS).then(|| odd.to_owned());
            let error = ClaimNames::from_settings(&lookup)
                .err()
                .unwrap()
                .to_string();
            assert!(
                error.contains("TIDEGATE_HTTP_JWT_CLAIMS: must be"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_session_is_its_role_and_paths_are_no_part_of_a_name() {
        let [role, user] =
            ["role", "user"].map(|kind| format!("arn:aws:iam::123456789012:{kind}/ward"));
        for (arn, wanted) in [
            (
                "arn:aws:sts::123456789012:assumed-role/ward/anybody",
                Some(&role),
            ),
            ("arn:aws:iam::123456789012:role/ward", Some(&role)),
            ("arn:aws:iam::123456789012:role/a/path/ward", Some(&role)),
            ("arn:aws:iam::123456789012:user/a/ward", Some(&user)),
            ("arn:aws:iam::123456789012:root", None),
            ("arn:aws:iam::123456789012:role/", None),
            ("arn:aws:iam::123456789012:role", None),
            ("arn:aws:iam::12345:role/ward", None),
            ("arn:aws:sts::123456789012:assumed-role/ward", None),
            ("arn:aws:sts::123456789012:federated-user/ward", None),
            ("arn:aws:s3:::ward", None),
            ("ward", None),
        ] {
            assert_eq!(principal(arn).as_ref(), wanted, "{arn}");
        }
    }

    #[test]
    fn claims_name_a_client_and_nobody_by_what_is_no_uuid() {
        let names = ClaimNames::parse("").unwrap();
        let client = Uuid::from_u128(1);
        for odd in [
            json!({}),
            json!({"client_id": null}),
            json!({"client_id": "ward"}),
            json!({"client_id": 7}),
            json!({"client_id": client, "user_id": "sister"}),
            json!({"client_id": client, "patient_id": [client]}),
            json!({"client_id": client, "patient_id": ""}),
        ] {
            assert!(names.read(&claims(odd.clone())).is_none(), "{odd}");
        }
    }
}
