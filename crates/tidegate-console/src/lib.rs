//! A web console for a [`tidegate`] program: how the queue is doing, what needs somebody, every event with what went wrong, and
//! every action that the command line has, with the audit knowing who did it.
//!
//! As a verb of a program's command line, `tidegate console`:
//!
//! ```no_run
//! # use tidegate::{Context, Dispatch, Done, Handlers, Program};
//! # tidegate::events! { pub enum Shop { Opened(()) = "opened" } }
//! # struct Handling;
//! # impl Dispatch for Handling {
//! #     type Event = Shop;
//! #     fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
//! #         match event {
//! #             Shop::Opened(()) => Handlers::one("greet", async { Ok(Done::ok()) }),
//! #         }
//! #     }
//! # }
//! # #[cfg(feature = "cli")]
//! fn main() -> std::process::ExitCode {
//!     tidegate_cli::CommandLine::new(Program::new(|_settings| Ok(Handling)))
//!         .verb(tidegate_console::console)
//!         .run()
//! }
//! # #[cfg(not(feature = "cli"))]
//! # fn main() {}
//! ```
//!
//! In a program of your own, [`router`] is an axum router; with the feature `lambda`, `function` is a Lambda function.
//!
//! # Layout
//!
//! - `guard`, `who`, `surround`: what stands before and around every page: names, who asks, forged requests, limits, headers;
//! - `screens`: the pages, one file each; `acts`: what people do;
//! - `page`, `offer`, `html`, `chart`, `json`: what pages are made of;
//! - `desk`, `form`: what a handler has before it;
//! - `link`, `asset`, `flash`, `problem`, `settings`, `shared`: addresses, files, the word after an action, refusals, settings, state;
//! - `serve`: the router on a socket; `verb`, `function`: both shells.
//!
//! The surprise: every page and every action works without a script. htmx does one thing, it renews the part of a page that
//! changes; what a page may not do, a POST may not either.

mod acts;
mod asset;
mod chart;
mod desk;
mod flash;
mod form;
#[cfg(feature = "lambda")]
pub mod function;
mod guard;
mod html;
mod json;
mod link;
mod login;
mod offer;
mod options;
mod page;
mod problem;
mod screens;
mod serve;
mod settings;
mod shared;
mod surround;
#[cfg(feature = "cli")]
mod verb;
mod who;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tidegate::program::Service;

pub use serve::serve;
pub use settings::Settings;
#[cfg(feature = "cli")]
pub use verb::{Console, console};
pub use who::{Acting, Auth, Identity, hash_password};

use problem::Problem;
use shared::Shared;

/// The console over this program. Links begin with the settings' base path; the routes do not: nest the router there.
pub fn router(service: Service, settings: Settings) -> Router {
    let shared = Arc::new(Shared::new(service, settings));
    let pages = screens::routes().merge(acts::routes());
    let pages = pages.fallback(|| async { Problem::not_found() });
    let pages = surround::guarded(pages.with_state(shared.clone()), &shared);
    let open = Router::new()
        .route("/assets/{name}", get(asset::serve))
        .route("/login", get(login::login))
        .with_state(shared.clone());
    let alive = Router::new().route("/healthz", get(|| async { "ok\n" }));
    surround::around(pages.merge(open), &shared).merge(alive)
}
