//! The context of a request: the person, their rights and the page.

use std::sync::Arc;

use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use tidegate::Error;
use tidegate_admin::program::Runtime;
use tidegate_admin::views::Rights;

use crate::flash;
use crate::link::Base;
use crate::problem::{Answered, Problem};
use crate::shared::ConsoleState;
use crate::who::Identity;

/// The context of a request.
pub(crate) struct PageContext {
    pub shared: Arc<ConsoleState>,
    pub who: Identity,
    pub rights: Rights,
    /// The path and query of the request, as the browser sees them.
    pub address: String,
    /// Whether only the part of the page that changes is requested.
    pub is_part: bool,
    /// The message of the action before.
    pub done: Option<String>,
}

impl PageContext {
    pub(crate) fn base(&self) -> &Base {
        &self.shared.settings.base
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    /// Whether the console and the database allow this person to act.
    pub(crate) fn may_act(&self) -> bool {
        self.shared.settings.acting.allows(&self.who) && self.rights.act
    }

    /// Refuses people who may not act.
    pub(crate) fn permitted(&self) -> Result<(), Problem> {
        if self.may_act() {
            return Ok(());
        }
        Err(Problem::forbidden("You have read-only access."))
    }

    /// Redirects to another page, which shows the message.
    #[expect(clippy::unnecessary_wraps, reason = "handlers return it as it is")]
    pub(crate) fn lead(&self, to: &str, text: &str) -> Answered {
        let cookie = flash::carried(text, &self.shared.settings);
        let cookie = cookie.map(|cookie| [(SET_COOKIE, cookie)]);
        Ok((cookie, Redirect::to(to)).into_response())
    }

    /// Whether the console and the database allow to show payloads, results and details of errors.
    pub(crate) fn shows_content(&self) -> bool {
        self.shared.settings.shows_content && self.rights.content
    }

    /// The registered kinds, which fields for a kind suggest. The part of a page that is renewed has no such
    /// field.
    pub(crate) async fn kinds(&self) -> Result<Markup, Error> {
        if self.is_part {
            return Ok(html! {});
        }
        let kinds = self.runtime().kinds().await?;
        Ok(html! { datalist #kinds { @for one in &kinds { option value=(one.kind) {} } } })
    }

    /// The person's name for the audit.
    pub(crate) fn actor(&self) -> String {
        self.who.name.clone()
    }
}

impl FromRequestParts<Arc<ConsoleState>> for PageContext {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        shared: &Arc<ConsoleState>,
    ) -> Result<Self, Self::Rejection> {
        let who = parts.extensions.get::<Identity>().cloned();
        let who = who.ok_or_else(|| Problem::forbidden("The request names no user."))?;
        let uri = parts
            .extensions
            .get::<OriginalUri>()
            .map_or(&parts.uri, |original| &original.0);
        let address = uri.path_and_query().map_or("/", |address| address.as_str());
        let address = address.to_owned();
        let is_part = parts.headers.contains_key("hx-request");
        Ok(Self {
            rights: shared.rights().await?,
            shared: shared.clone(),
            who,
            address,
            is_part,
            done: flash::read(&parts.headers).filter(|_| !is_part),
        })
    }
}
