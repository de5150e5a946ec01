//! Reads the fields of forms and of queries. An error names the field.

use std::time::Duration;

use axum::extract::Query;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use tidegate::config::parse_duration;
use tidegate_admin::{TimeArg, parse_time_arg};

use crate::link::Base;
use crate::problem::Problem;

/// Fields in order. A name can occur several times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// Refuses NUL, which no text in Postgres can contain.
    fn checked(self) -> Result<Self, Problem> {
        match self.0.iter().find(|(_, value)| value.contains('\0')) {
            None => Ok(self),
            Some((name, _)) => Err(Problem::invalid(format!(
                "{name}: must have no character NUL"
            ))),
        }
    }

    /// Returns a field's text, or `None` if it is empty or missing.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let mut all = self.0.iter();
        let found = all.find(|(known, value)| known == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }

    /// As [`Form::text`], owned.
    pub(crate) fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    pub(crate) fn needed(&self, name: &str) -> Result<&str, Problem> {
        self.text(name)
            .ok_or_else(|| Problem::invalid(format!("{name}: must be given")))
    }

    /// Whether a field is filled in, or a checkbox ticked.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// All values of a name, with the name.
    pub(crate) fn pairs(&self, name: &str) -> Vec<(String, String)> {
        let value = |value: &str| (name.to_owned(), value.to_owned());
        self.all(name).map(value).collect()
    }

    /// Replaces all values of a name.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value.to_owned()));
    }

    /// All values of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let all = self
            .0
            .iter()
            .filter(move |(known, value)| known == name && !value.is_empty());
        all.map(|(_, value)| value.as_str())
    }

    /// Returns a number, or `None` if the field is empty or missing.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let refused = |text: &str| format!("must be a number, got {text:?}");
        self.read(name, |text| text.parse().map_err(|_| refused(text)))
    }

    /// As [`Form::number`], for a duration such as `30s`.
    pub(crate) fn duration(&self, name: &str) -> Result<Option<Duration>, Problem> {
        self.read(name, parse_duration)
    }

    /// As [`Form::number`], for a time or a duration that means "ago".
    pub(crate) fn moment(&self, name: &str) -> Result<Option<TimeArg>, Problem> {
        self.read(name, parse_time_arg)
    }

    fn read<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let read = parse(text.trim());
        read.map(Some)
            .map_err(|why| Problem::invalid(format!("{name}: {why}")))
    }

    /// Returns the page of the console where the form was, or `otherwise`.
    pub(crate) fn back(&self, base: &Base, otherwise: &str) -> String {
        let back = self.text("back").filter(|back| {
            let below = back.strip_prefix(base.path());
            below.is_some_and(|below| {
                (below.starts_with('/') && !below.starts_with("//"))
                    || (below.is_empty() && !back.is_empty())
            }) && back.starts_with('/')
                && !back.chars().any(|c| c.is_control() || c == '\\')
        });
        back.map_or_else(|| base.to(otherwise).as_str().to_owned(), str::to_owned)
    }
}

/// The fields in the address of a request.
pub(crate) struct Params(pub Form);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let fields = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let fields = fields.map_err(|error| Problem::invalid(error.body_text()))?;
        Form(fields.0).checked().map(Self)
    }
}

/// The fields in the body of a request.
pub(crate) struct Posted(pub Form);

impl<S: Send + Sync> FromRequest<S> for Posted {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let fields = axum::Form::<Vec<(String, String)>>::from_request(request, state).await;
        let fields = fields.map_err(|error| {
            let title = "This form cannot be read";
            Problem::new(error.status(), title, error.body_text())
        })?;
        Form(fields.0).checked().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Form {
        Form(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn what_is_wrong_is_told_by_its_name() {
        let sent = fields(&[
            ("id", "7"),
            ("id", "8"),
            ("delay", "soon"),
            ("limit", "many"),
            ("kind", ""),
        ]);
        assert_eq!(sent.all("id").collect::<Vec<_>>(), ["7", "8"]);
        assert!(sent.clone().checked().is_ok());
        let nul = fields(&[("group", "\0")]).checked().unwrap_err();
        assert_eq!(nul.text, "group: must have no character NUL");
        for problem in [
            sent.duration("delay").unwrap_err(),
            sent.number::<u32>("limit").unwrap_err(),
            sent.needed("kind").map(drop).unwrap_err(),
        ] {
            let names = ["delay: ", "limit: ", "kind: ", "none: "];
            assert!(
                names.iter().any(|name| problem.text.starts_with(name)),
                "{problem:?}"
            );
        }
    }

    #[test]
    fn an_action_leads_back_into_the_console_and_nowhere_else() {
        let base = Base::parse("/ops").unwrap();
        let back = |to: &str| fields(&[("back", to)]).back(&base, "/events");
        assert_eq!(back("/ops/groups?x=1"), "/ops/groups?x=1");
        assert_eq!(back("/ops"), "/ops");
        for evil in [
            "https://evil.example/",
            "//evil.example",
            "/other",
            "/ops//evil.example",
            "/ops/\\evil",
            "/opsevil",
            "",
        ] {
            assert_eq!(back(evil), "/ops/events", "{evil}");
        }
        let root = |to: &str| fields(&[("back", to)]).back(&Base::default(), "/");
        assert_eq!(root("//evil.example"), "/");
        assert_eq!(root("/kinds"), "/kinds");
    }
}
