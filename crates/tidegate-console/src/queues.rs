//! The consoles of several queues: a list of the queues, and a console for each below `/q/NAME`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Extension, OriginalUri, Request, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use maud::html;
use percent_encoding::percent_decode_str;
use tidegate::Error;
use tidegate::program::Queues;
use tidegate::queue::Look;
use tower::ServiceExt;

use crate::form::Params;
use crate::html::{chip, empty, input, millis, number, table};
use crate::problem::Problem;
use crate::settings::{OfSeveral, Settings};
use crate::shared::Shared;
use crate::who::Identity;
use crate::{page, screens, served};

/// How many consoles are kept.
const MOST_OPEN: usize = 50;

/// How long a console is used before its queue is looked up again.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// How long a look at all queues is shown.
const LOOK_KEPT: Duration = Duration::from_secs(5);

/// The most queues on a page.
const SHOWN: usize = 500;

/// Returns the console of all queues of a program. Links begin with the base path of the settings, but the
/// routes do not: nest the router there.
pub fn router_of_all(queues: Arc<Queues>, settings: Settings) -> Router {
    let of = OfSeveral {
        home: settings.base.clone(),
        queue: None,
    };
    let settings = Settings {
        of: Some(of),
        ..settings
    };
    let shared = Arc::new(Shared::new(queues.common().clone(), settings.clone()));
    let consoles = Arc::new(Consoles {
        queues,
        settings,
        open: Mutex::default(),
        look: tokio::sync::Mutex::default(),
    });
    let pages = Router::new().route("/", get(list)).fallback(of_queue);
    served(pages.with_state(consoles), &shared)
}

struct Consoles {
    queues: Arc<Queues>,
    settings: Settings,
    open: Mutex<VecDeque<Open>>,
    look: tokio::sync::Mutex<Option<(Instant, Looks)>>,
}

type Looks = Arc<[(String, Option<Look>)]>;

/// The console of one queue.
#[derive(Clone)]
struct Open {
    name: String,
    since: Instant,
    routes: Router,
}

impl Consoles {
    /// Returns the pages of this queue.
    async fn of(&self, name: &str) -> Result<Router, Problem> {
        let known = self.known(name);
        if let Some(known) = &known
            && known.since.elapsed() < KNOWN_FOR
        {
            return Ok(known.routes.clone());
        }
        let service = self
            .queues
            .one(Some(name))
            .await
            .map_err(|error| match error {
                Error::Invalid(_) => Problem::not_found(),
                other => other.into(),
            })?;
        let of = OfSeveral {
            home: self.settings.base.clone(),
            queue: Some(name.to_owned()),
        };
        let settings = Settings {
            base: self.settings.base.of_queue(name),
            of: Some(of),
            ..self.settings.clone()
        };
        let routes = screens::pages(&Arc::new(Shared::new((*service).clone(), settings)));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|open| open.name != name);
        open.truncate(MOST_OPEN - 1);
        open.push_front(Open {
            name: name.to_owned(),
            since: Instant::now(),
            routes: routes.clone(),
        });
        Ok(routes)
    }

    fn known(&self, name: &str) -> Option<Open> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|open| open.name == name).cloned()
    }

    async fn looks(&self) -> Result<Looks, Problem> {
        let mut look = self.look.lock().await;
        if let Some((at, known)) = &*look
            && at.elapsed() < LOOK_KEPT
        {
            return Ok(known.clone());
        }
        let looks: Looks = self.queues.look().await?.into();
        *look = Some((Instant::now(), looks.clone()));
        Ok(looks)
    }
}

/// The list of the queues, the most urgent first.
async fn list(
    State(consoles): State<Arc<Consoles>>,
    Extension(who): Extension<Identity>,
    Params(request): Params,
) -> Result<Response, Problem> {
    let looks = consoles.looks().await?;
    let part = request.text("name").unwrap_or_default();
    let found: Vec<_> = looks
        .iter()
        .filter(|(name, _)| name.contains(part))
        .collect();
    let (base, count) = (&consoles.settings.base, found.len());
    let shown = &found[..count.min(SHOWN)];
    let inside = html! {
        search { form.filters method="get" action=(base.to("/")) {
            (input("Name", "name", part, "")) button.primary { "Show" }
        } }
        @if shown.is_empty() { (empty("No queue has such a name.")) } @else {
            (table! { "Queues"; (name, look) in shown;
                th "Queue" { a href=(base.of("/q", name)) { bdi { (name) } } }
                n "Events" { @match look { Some(look) => { (events(look.events)) }, None => { "–" } } }
                n "Oldest" { @match look { Some(look) if look.events > 0 => { (millis(look.oldest_age_ms)) }, _ => { "–" } } }
                td "State" { @match look {
                    Some(look) if look.needs_drain => { "has work" },
                    Some(_) => { "has nothing to do" },
                    None => { (chip("bad", "✕", "does not answer")) },
                } }
            })
        }
        p.note { (number(count as u64)) " queues" @if count > SHOWN { ", of which the first " (number(SHOWN as u64)) " are shown" } "." }
    };
    Ok(page::of_queues(&consoles.settings, &who, &inside).into_response())
}

/// Events are counted up to this number.
const COUNTED: u64 = 100_000;

fn events(count: u64) -> String {
    let more = if count >= COUNTED { " or more" } else { "" };
    format!("{}{more}", number(count))
}

/// Passes a request on to the console of its queue.
async fn of_queue(
    State(consoles): State<Arc<Consoles>>,
    OriginalUri(address): OriginalUri,
    request: Request,
) -> Result<Response, Problem> {
    let base = consoles.settings.base.path();
    let (name, path) = place(address.path(), base).ok_or_else(Problem::not_found)?;
    let routes = consoles.of(&name).await?;
    let query = address.query().map(|query| format!("?{query}"));
    let inside: Uri = format!("{path}{}", query.unwrap_or_default())
        .parse()
        .map_err(|_| Problem::not_found())?;
    let (mut parts, body) = request.into_parts();
    parts.uri = inside;
    match routes.oneshot(Request::from_parts(parts, body)).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}

/// Returns the queue of a path, and the path in its console.
fn place<'a>(path: &'a str, base: &str) -> Option<(String, &'a str)> {
    let place = path.strip_prefix(base)?.strip_prefix("/q/")?;
    let (name, path) = match place.find('/') {
        Some(at) => place.split_at(at),
        None => (place, "/"),
    };
    let name = percent_decode_str(name).decode_utf8().ok()?;
    Some((name.into_owned(), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_the_queue_and_the_page() {
        let of = |path| place(path, "/ops").map(|(name, path)| (name, path.to_owned()));
        let found = |name: &str, path: &str| Some((name.to_owned(), path.to_owned()));
        assert_eq!(of("/ops/q/north"), found("north", "/"));
        assert_eq!(of("/ops/q/north/"), found("north", "/"));
        assert_eq!(
            of("/ops/q/night%2Fnorth/events/7"),
            found("night/north", "/events/7")
        );
        for path in ["/q/north", "/ops/events", "/ops", "/ops/q/%ff/x"] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
