//! A web console for a [`tidegate`] program. It shows how the queue is doing, what needs attention, and every
//! event with its errors. It has the actions of the command line, and the audit names the person.
//!
//! It owns the pages, the forms, and who may see and do what. It knows no SQL and no handler: the views and
//! verbs of `tidegate_admin` read and change the queue, and `tidegate_cli` describes what an action did.
//!
//! A request passes the server of [`tidegate_http`], then the checks of the host's name, the person and their
//! rate (`guard`, `who`), and reaches a page (`screens`), which renders a view of the queue. The form of an
//! action becomes the request of a verb (`actions`). If that may change many events, a dry run shows them
//! first, and the confirmation changes exactly these or none. `screens/publish` puts an event into the queue.
//!
//! As a verb of a program's command line, `tidegate console`:
//!
//! ```no_run
//! # use tidegate::{Context, Dispatch, Done, Handlers};
//! # use tidegate_admin::Program;
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
//! fn main() -> std::process::ExitCode {
//!     tidegate_cli::CommandLine::new(Program::new(|_settings| Ok(Handling)))
//!         .verb(tidegate_console::console)
//!         .run()
//! }
//! ```
//!
//! In a web application of your own, use the axum router [`router`]. With the feature `lambda`, `function`
//! runs it as a Lambda function.
//!
//! # Layout
//!
//! - `guard`, `who`, `login`, `middleware`: the checks and limits of every request, authentication, headers.
//! - `screens`: the pages, one file each. `metrics`: the figures for Prometheus.
//! - `actions`: the actions, which are verbs of the command line, and their fields. `action_forms`: their
//!   forms. `report`: what a dry run returns.
//! - `page`, `html`, `chart`: the parts of pages.
//! - `context`, `form`: the context and the fields of a request.
//! - `checkup`: the doctor's checks, which run in the background of the requests.
//! - `link`, `asset`, `flash`, `problem`, `shared`: links, files, messages after actions, errors, state.
//! - `verb`, `function`: the command line and Lambda, with their `options`. `settings`: those of a router.
//!
//! Every page and every action works without JavaScript. htmx only renews the part of a page that changes.
//! Each action checks the person's rights again, whatever the page offered.

mod action_forms;
mod actions;
mod asset;
mod chart;
mod checkup;
mod context;
mod flash;
mod form;
#[cfg(feature = "lambda")]
pub mod function;
mod guard;
mod html;
mod link;
mod login;
mod metrics;
mod middleware;
mod options;
mod page;
mod problem;
mod report;
mod screens;
mod settings;
mod shared;
mod verb;
mod who;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

pub use link::Base;
pub use middleware::serve;
pub use settings::{Instance, Settings};
pub use verb::{Console, console};
pub use who::{Acting, Auth, Identity};

use shared::ConsoleState;
use tidegate_admin::program::Runtime;

/// Returns the console of this program. Links begin with the base path of the settings, but the routes do
/// not: nest the router there.
pub fn router(runtime: Runtime, settings: Settings) -> Router {
    let shared = Arc::new(ConsoleState::new(runtime, settings));
    let pages = middleware::guarded(screens::pages(&shared), &shared);
    let open = Router::new()
        .route("/assets/{name}", get(asset::serve))
        .route("/login", get(login::login))
        .with_state(shared.clone());
    let alive = Router::new().route("/healthz", get(|| async { "ok\n" }));
    middleware::around(pages.merge(open), &shared).merge(alive)
}
