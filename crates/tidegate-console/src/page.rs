//! Renders the frame of every page: head, banner, menu, footer, and the part that renews itself.

use axum::http::header::SET_COOKIE;
use axum::response::IntoResponse;
use maud::{DOCTYPE, Markup, html};

use crate::asset::{CODE, HTMX, ICON, STYLE};
use crate::context::PageContext;
use crate::flash;
use crate::link::Base;
use crate::problem::{Answered, Problem};
use crate::settings::Settings;

/// The menu: the paths of its pages, and their names.
const MENU: [(&str, &str); 12] = [
    ("/", "Overview"),
    ("/events", "Events"),
    ("/dead", "Dead letters"),
    ("/groups", "Groups"),
    ("/kinds", "Kinds"),
    ("/services", "Services"),
    ("/schedules", "Schedules"),
    ("/leases", "Leases"),
    ("/drains", "Drains"),
    ("/retention", "Retention"),
    ("/doctor", "Doctor"),
    ("/audit", "Audit"),
];

/// Settings of htmx: no eval, no requests to other servers, no cache of pages.
const HTMX_CONFIG: &str = r#"{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyEnabled":false,"historyCacheSize":0,"refreshOnHistoryMiss":true,"timeout":10000}"#;

/// A page that a handler returns.
pub(crate) struct Page {
    /// Its place in the menu, a path.
    pub place: &'static str,
    pub title: String,
    /// The command that prints the same, or an empty text.
    pub command: String,
    /// The part that is not renewed, such as filters.
    pub fixed: Markup,
    /// The part that is renewed, if `renews` is set.
    pub body: Markup,
    pub renews: bool,
    /// The text for screen readers, announced when it changes.
    pub said: String,
}

impl Page {
    pub(crate) fn new(
        place: &'static str,
        title: impl Into<String>,
        command: impl Into<String>,
        body: Markup,
    ) -> Self {
        Self {
            place,
            title: title.into(),
            command: command.into(),
            fixed: html! {},
            body,
            renews: false,
            said: String::new(),
        }
    }

    pub(crate) fn fixed(mut self, fixed: Markup) -> Self {
        self.fixed = fixed;
        self
    }

    /// Makes the page renew itself. Screen readers announce `said` when it changes.
    pub(crate) fn renewing(mut self, said: impl Into<String>) -> Self {
        self.renews = true;
        self.said = said.into();
        self
    }

    /// Answers with the page, or with only its body if that is what the page renews.
    #[expect(clippy::unnecessary_wraps, reason = "handlers return it as it is")]
    pub(crate) fn answer(self, ctx: &PageContext) -> Answered {
        if ctx.is_part && self.renews {
            let said = html! { p #said hx-swap-oob="true" { (self.said) } };
            return Ok(html! { (self.part(ctx)) (said) }.into_response());
        }
        let mut response = self.whole(ctx).into_response();
        if ctx.done.is_some()
            && let Some(cookie) = flash::forgotten(&ctx.shared.settings)
        {
            response.headers_mut().append(SET_COOKIE, cookie);
        }
        Ok(response)
    }

    /// The part that is renewed.
    fn part(&self, ctx: &PageContext) -> Markup {
        html! {
            div #live hx-get=[self.renews.then_some(&ctx.address)] hx-trigger=[self.renews.then_some("tick from:body")]
                hx-swap=[self.renews.then_some("outerHTML")] { (self.body) }
        }
    }

    fn whole(&self, ctx: &PageContext) -> Markup {
        let settings = &ctx.shared.settings;
        let inside = html! {
            div.title {
                h1 { (self.title) }
                @if self.renews {
                    button #pulse.quiet type="button" hidden aria-pressed="true" { "Refresh every 5 s" }
                }
            }
            @if let Some(done) = &ctx.done {
                p.done role="status" { span.sign aria-hidden="true" { "✓" } " " (done) }
            }
            (self.fixed)
            (self.part(ctx))
            (command(&self.command))
        };
        let person = html! {
            span { "Signed in as " strong { bdi { (ctx.who.name) } } }
            span { @if ctx.may_act() { "may act" } @else { "read only" } }
            span { "database " bdi { (ctx.rights.database) } " as " bdi { (ctx.rights.user) } }
        };
        frame(settings, &self.title, Some(self.place), &inside, &person)
    }
}

/// The page of a problem.
pub(crate) fn of_problem(settings: &Settings, problem: &Problem) -> Markup {
    let inside = html! {
        h1 { (problem.title) }
        p.problem role="alert" { bdi { (problem.text) } }
        p { a href=(settings.base.to("/")) { "To the overview" } }
    };
    frame(settings, problem.title, None, &inside, &html! {})
}

fn command(command: &str) -> Markup {
    html! {
        @if !command.is_empty() {
            p.command {
                span.label { "On the command line" }
                code #command { (command) }
                button.quiet.copy type="button" hidden data-copy="command" { "Copy" }
            }
        }
    }
}

fn frame(
    settings: &Settings,
    title: &str,
    place: Option<&str>,
    inside: &Markup,
    person: &Markup,
) -> Markup {
    let base = &settings.base;
    let instance = settings.instance.as_ref();
    let name = instance.map(|instance| instance.name.as_str());
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="htmx-config" content=(HTMX_CONFIG);
                title { (title) " · " @if let Some(name) = name { (name) " · " } "Tidegate" }
                link rel="icon" type="image/svg+xml" href=(base.to(&ICON.path));
                link rel="stylesheet" href=(base.to(&STYLE.path));
                script defer src=(base.to(&HTMX.path)) {}
                script defer src=(base.to(&CODE.path)) {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                @if let Some(instance) = &settings.instance {
                    p class={ "banner " (instance.colour) } { (instance.name) }
                }
                div.frame {
                    header {
                        a.brand href=(base.to("/")) { img src=(base.to(&ICON.path)) alt="" width="28" height="28"; "Tidegate" }
                        (menu(base, place))
                    }
                    main #main tabindex="-1" { (inside) }
                }
                footer { div.person { (person) } p.hint hidden { "Press " kbd { "?" } " for keys" } }
                p #said.unseen role="status" {}
                (keys())
            }
        }
    }
}

fn menu(base: &Base, place: Option<&str>) -> Markup {
    html! {
        search aria-label="Anything" {
            form.find action=(base.to("/find")) {
                input type="search" name="q" required aria-label="Event id, kind or correlation id" placeholder="id, kind …" autocomplete="off";
                button.quiet { "Go" }
            }
        }
        nav aria-label="Main" {
            ul {
                @for (path, name) in MENU {
                    li { a href=(base.to(path)) aria-current=[(place == Some(path)).then_some("page")] { (name) } }
                }
            }
        }
    }
}

fn keys() -> Markup {
    html! {
        dialog #keys aria-labelledby="keys-title" {
            h2 #keys-title { "Keys" }
            dl {
                dt { kbd { "/" } } dd { "to the filter" }
                dt { kbd { "j" } " " kbd { "k" } } dd { "next and previous row" }
                dt { kbd { "o" } } dd { "open the row" }
                dt { kbd { "?" } } dd { "this help" }
            }
            form method="dialog" { button { "Close" } }
        }
    }
}
