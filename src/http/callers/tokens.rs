//! Owns the check of an OIDC token: whether it comes from the issuer, is meant for us and is currently valid, and on whose
//! behalf its bearer calls.
//!
//! Signatures are RS256 or ES256. OpenSSL, the TLS library, checks them with the issuer's public keys. The key determines
//! the algorithm, whatever the header of a token says. Neither `none` nor a public key used as a secret (HS256) is
//! accepted.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error as JwtError, ErrorKind};
use jsonwebtoken::signature::{Error as SignatureError, Verifier as Verify};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey, EcPoint};
use openssl::ecdsa::EcdsaSig;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Public};
use openssl::rsa::Rsa;
use openssl::sign::Verifier;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::issuer::{Found, Issuer};
use super::{Caller, Known, not_valid};
use crate::http::problem::Problem;
use tidegate::{Error, Lookup};

const AUDIENCE: &str = "TIDEGATE_HTTP_JWT_AUDIENCE";
const CLAIMS: &str = "TIDEGATE_HTTP_JWT_CLAIMS";

/// Tolerated difference between our clock and the issuer's, in seconds.
const LEEWAY: u64 = 30;

/// The accepted issuer, and the claims that tokens must have.
pub(super) struct Tokens {
    issuer: Issuer,
    audience: String,
    names: Names,
}

/// The names of the claims in a token.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    client: String,
    user: String,
    patient: String,
    scope: String,
}

impl Names {
    /// Reads `client_id=org,user_id=sub`. A claim that is not listed keeps its own name.
    fn parse(text: &str) -> Option<Self> {
        let mut names = Self {
            client: "client_id".to_owned(),
            user: "user_id".to_owned(),
            patient: "patient_id".to_owned(),
            scope: "scope".to_owned(),
        };
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (what, name) = pair.split_once('=')?;
            let name = name.trim();
            let renamed = match what.trim() {
                "client_id" => &mut names.client,
                "user_id" => &mut names.user,
                "patient_id" => &mut names.patient,
                "scope" => &mut names.scope,
                _ => return None,
            };
            name.clone_into(renamed);
            if name.is_empty() {
                return None;
            }
        }
        Some(names)
    }
}

impl Tokens {
    /// Reads `TIDEGATE_HTTP_JWT_ISSUER`, `_AUDIENCE`, `_KEYS` and `_CLAIMS`.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and what is allowed.
    pub(super) fn from_settings(lookup: Lookup<'_>) -> Result<Self, Error> {
        // If another call was first, it installed the same provider.
        let _ = PROVIDER.install_default();
        let audience = lookup(AUDIENCE).ok_or_else(|| {
            let must = "must be the `aud` of the issuer's tokens for this service";
            Error::Config(format!("{AUDIENCE}: {must}; it is not set"))
        })?;
        let said = lookup(CLAIMS).unwrap_or_default();
        let names = Names::parse(&said).ok_or_else(|| {
            let must = "must be pairs NAME=CLAIM such as client_id=org,user_id=sub, with the names client_id, user_id, patient_id and scope";
            Error::Config(format!("{CLAIMS}: {must}, got {said:?}"))
        })?;
        Ok(Self {
            issuer: Issuer::from_settings(lookup)?,
            audience,
            names,
        })
    }

    /// Returns the caller of a token.
    ///
    /// # Errors
    /// 401, or 503 if the issuer's keys are not available.
    pub(super) async fn find(&self, token: &str) -> Result<Known, Problem> {
        let header = decode_header(token).map_err(|_| not_valid(NO_TOKEN))?;
        let kid = header.kid.as_deref().filter(|_| header.crit.is_none());
        let key = match self
            .issuer
            .key(kid.ok_or_else(|| not_valid(NO_TOKEN))?)
            .await
        {
            Found::Key(key) if key.algorithm == header.alg => key,
            Found::Key(_) | Found::Unknown => return Err(not_valid(NOT_SIGNED)),
            Found::Away => {
                let message = "the keys of the token issuer are not available; try again";
                return Err(Problem::unavailable(message));
            }
        };
        let claims = decode::<Map<String, Value>>(token, &key.public, &self.demands(key.algorithm));
        let claims = claims.map_err(|error| not_valid(reason(&error)))?.claims;
        self.says(&claims).ok_or_else(|| {
            not_valid("its claims do not name the client, or an id in them is not a UUID")
        })
    }

    /// Returns the name of the accepted issuer.
    pub(super) fn issuer(&self) -> &str {
        self.issuer.name()
    }

    fn demands(&self, algorithm: Algorithm) -> Validation {
        let mut demands = Validation::new(algorithm);
        demands.leeway = LEEWAY;
        demands.validate_nbf = true;
        demands.set_audience(&[&self.audience]);
        demands.set_issuer(&[self.issuer.name()]);
        demands.set_required_spec_claims(&["exp", "iss", "aud"]);
        demands
    }

    /// Reads the caller from the claims. Returns `None` if they name no client, or if an id is not a UUID.
    fn says(&self, claims: &Map<String, Value>) -> Option<Known> {
        let id = |name: &String| match claims.get(name) {
            None | Some(Value::Null) => Some(None),
            Some(said) => Uuid::try_parse(said.as_str()?).ok().map(Some),
        };
        let caller = Caller {
            client: Some(id(&self.names.client)??),
            user: id(&self.names.user)?,
            patient: id(&self.names.patient)?,
        };
        // One text with several words, as in RFC 8693, or a list of texts.
        let scopes = match claims.get(&self.names.scope) {
            Some(Value::String(words)) => words.split(' ').collect(),
            Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        Some(Known::new(caller, scopes))
    }
}

const NO_TOKEN: &str = "it is not a token that this service accepts";
const NOT_SIGNED: &str = "it is not signed by a key of its issuer";

/// All these checks come after the signature, so a reason is given only for tokens of the issuer.
fn reason(error: &JwtError) -> &'static str {
    match error.kind() {
        ErrorKind::ExpiredSignature => "it has expired",
        ErrorKind::ImmatureSignature => "it is not valid yet",
        ErrorKind::InvalidAudience | ErrorKind::InvalidIssuer => "it is for another service",
        ErrorKind::MissingRequiredClaim(_) => "it lacks `exp`, `iss` or `aud`",
        ErrorKind::InvalidSignature => NOT_SIGNED,
        _ => NO_TOKEN,
    }
}

/// The signature algorithms for `jsonwebtoken`. It verifies and cannot sign.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| verifier(*algorithm, key),
    key_utils: KeyUtils::new_unimplemented(),
};

fn verifier(algorithm: Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, JwtError> {
    let public = match algorithm {
        Algorithm::RS256 => rsa(key),
        Algorithm::ES256 => ecdsa(key),
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    let public = public.ok_or(ErrorKind::InvalidKeyFormat)?;
    Ok(Box::new(Signed { algorithm, public }))
}

fn rsa(key: &DecodingKey) -> Option<PKey<Public>> {
    let DecodingKeyKind::RsaModulusExponent { n, e } = key.kind() else {
        return None;
    };
    let [modulus, exponent] = [n, e].map(|bytes| BigNum::from_slice(bytes));
    let key = Rsa::from_public_components(modulus.ok()?, exponent.ok()?);
    PKey::from_rsa(key.ok()?).ok()
}

fn ecdsa(key: &DecodingKey) -> Option<PKey<Public>> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).ok()?;
    let mut context = BigNumContext::new().ok()?;
    let point = EcPoint::from_bytes(&group, key.try_get_as_bytes().ok()?, &mut context).ok()?;
    let key = EcKey::from_public_key(&group, &point).ok()?;
    key.check_key().ok()?;
    PKey::from_ec_key(key).ok()
}

struct Signed {
    algorithm: Algorithm,
    public: PKey<Public>,
}

impl Signed {
    fn is_by(&self, message: &[u8], signature: &[u8]) -> Result<bool, ErrorStack> {
        let mut verifier = Verifier::new(MessageDigest::sha256(), &self.public)?;
        if self.algorithm != Algorithm::ES256 {
            return verifier.verify_oneshot(signature, message);
        }
        // RFC 7518 uses two numbers of 32 bytes, and OpenSSL expects them in DER.
        let (Some((r, s)), 64) = (signature.split_at_checked(32), signature.len()) else {
            return Ok(false);
        };
        let [r, s] = [r, s].map(BigNum::from_slice);
        let signature = EcdsaSig::from_private_components(r?, s?)?.to_der()?;
        verifier.verify_oneshot(&signature, message)
    }
}

impl Verify<Vec<u8>> for Signed {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), SignatureError> {
        match self.is_by(message, signature) {
            Ok(true) => Ok(()),
            _ => Err(SignatureError::new()),
        }
    }
}

impl JwtVerifier for Signed {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokens(claims: &'static str) -> Result<Tokens, Error> {
        Tokens::from_settings(&|name| match name {
            "TIDEGATE_HTTP_JWT_ISSUER" => Some("https://issuer.example.org".to_owned()),
            AUDIENCE => Some("tidegate".to_owned()),
            CLAIMS => Some(claims.to_owned()).filter(|text| !text.is_empty()),
            _ => None,
        })
    }

    #[test]
    fn claims_are_found_under_the_names_that_the_issuer_gives_them() {
        let [client, user] = [1, 2].map(Uuid::from_u128);
        let claims = json!({"client_id": client, "user_id": null, "org": user, "sub": client, "scope": "jobs canary forms",
            "scp": ["letters", 7]});
        let claims = claims.as_object().unwrap();
        let plain = tokens("").unwrap().says(claims).unwrap();
        let expected = Caller {
            client: Some(client),
            ..Caller::default()
        };
        assert_eq!(plain.caller, expected);
        assert_eq!(plain.scopes.len(), 2);
        let renamed = tokens("client_id=org, user_id=sub,scope=scp").unwrap();
        let renamed = renamed.says(claims).unwrap();
        assert_eq!(
            (renamed.caller.client, renamed.caller.user),
            (Some(user), Some(client))
        );
        assert_eq!(renamed.scopes.len(), 1);
        for odd in ["client_id", "client=org", "client_id=", "aud=x"] {
            let error = tokens(odd).err().unwrap().to_string();
            assert!(
                error.contains("TIDEGATE_HTTP_JWT_CLAIMS: must be"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_token_names_a_client_and_nobody_by_what_is_no_uuid() {
        let tokens = tokens("").unwrap();
        let client = Uuid::from_u128(1);
        for claims in [
            json!({}),
            json!({"client_id": null}),
            json!({"client_id": "ward"}),
            json!({"client_id": 7}),
            json!({"client_id": client, "user_id": "sister"}),
            json!({"client_id": client, "patient_id": [client]}),
        ] {
            assert!(
                tokens.says(claims.as_object().unwrap()).is_none(),
                "{claims}"
            );
        }
    }

    #[test]
    fn settings_are_refused_by_name() {
        for (settings, named) in [
            (&[][..], "TIDEGATE_HTTP_JWT_AUDIENCE: must be"),
            (&[(AUDIENCE, "a")], "TIDEGATE_HTTP_JWT_ISSUER: must be"),
            (
                &[
                    (AUDIENCE, "a"),
                    ("TIDEGATE_HTTP_JWT_ISSUER", "http://example.org"),
                ],
                "TIDEGATE_HTTP_JWT_ISSUER: must be",
            ),
            (
                &[
                    (AUDIENCE, "a"),
                    ("TIDEGATE_HTTP_JWT_ISSUER", "https://example.org"),
                    ("TIDEGATE_HTTP_JWT_KEYS", "http://192.0.2.1/keys"),
                ],
                "TIDEGATE_HTTP_JWT_KEYS: must be",
            ),
        ] {
            let lookup = |name: &str| {
                let found = settings.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let error = Tokens::from_settings(&lookup).err().unwrap().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
