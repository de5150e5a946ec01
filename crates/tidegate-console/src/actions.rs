//! Actions: the verbs that the audit names a person for, as forms. The list of the verbs says which these
//! are, and the flags of the command line are their fields, with its help. So this module knows no verb by
//! name.
//!
//! A form does what the command line does, with the person's name for the audit, and the answer is what the
//! command line prints.

use std::any::TypeId;
use std::sync::LazyLock;

use clap::{Arg, ArgAction, Command, Subcommand};
use maud::{Markup, html};
use serde_json::{Map, Value, json};
use tidegate_admin::{Request, TimeArg};
use tidegate_cli::{Answer, quoted};

use crate::context::PageContext;
use crate::form::Form;
use crate::html::{select, suggestions, tick};
use crate::problem::Problem;

static VERBS: LazyLock<Command> =
    LazyLock::new(|| Request::augment_subcommands(Command::new("tidegate")));

/// The longest budget of an action, shorter than the time limit of a request. Repeating the request does the
/// rest.
const BUDGET: &str = "10s";

/// The fields that are filled in, or asked for in a way of their own.
const FILLED: [&str; 5] = ["actor", "budget", "digest", "dry_run", "reason"];

/// The states of events.
const STATUSES: [(&str, &str); 6] = [
    ("", "any"),
    ("PENDING", "pending"),
    ("PROCESSING", "processing"),
    ("COMPLETED", "completed"),
    ("COMPLETED_WITH_ERRORS", "rejected"),
    ("FAILED", "failed"),
];

/// A verb; an action, if it has an actor.
#[derive(Clone, Copy)]
pub(crate) struct Action(&'static Command);

/// A flag or an argument of a verb, which is a field of its form.
#[derive(Clone, Copy)]
pub(crate) struct Field(&'static Arg);

/// How a request is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent<'a> {
    /// Do it to what the request names.
    Direct,
    /// Show what it would do.
    DryRun,
    /// Do exactly what the dry run with this digest has shown.
    As(&'a str),
    /// Do what a dry run has shown, of a verb whose requests have no digest.
    Confirmed,
}

impl Action {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let verbs = VERBS.get_subcommands().map(Self);
        verbs.filter(|action| action.has("actor"))
    }

    /// The verb of this name, which need not be an action.
    pub(crate) fn of(name: &str) -> Option<Self> {
        VERBS.find_subcommand(name).map(Self)
    }

    /// The action of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::of(name).filter(|action| action.has("actor"))
    }

    pub(crate) fn name(self) -> &'static str {
        self.0.get_name()
    }

    pub(crate) fn title(self) -> String {
        title(self.name())
    }

    /// Says what it does or, if it does one of several things, what `flag` does.
    pub(crate) fn explains(self, flag: Option<&str>) -> String {
        let flag = flag.and_then(|flag| self.field(flag));
        flag.map_or_else(
            || sentence(self.0.get_about()),
            |flag| sentence(flag.0.get_help()),
        )
    }

    /// Whether it can change many events at once, those of a filter, and so is tried before.
    pub(crate) fn is_tried_before(self) -> bool {
        self.has("digest")
    }

    /// Whether its request has a field of this name.
    pub(crate) fn has(self, id: &str) -> bool {
        self.0.get_arguments().any(|field| field.get_id() == id)
    }

    /// The field of this name, as forms and addresses spell it.
    pub(crate) fn field(self, name: &str) -> Option<Field> {
        let mut fields = self.0.get_arguments().map(Field);
        fields.find(|field| field.name() == name)
    }

    /// The fields that people fill in, or that select events.
    pub(crate) fn fields(self) -> impl Iterator<Item = Field> {
        let fields = self.0.get_arguments().map(Field);
        fields.filter(|field| !FILLED.contains(&field.id()))
    }

    /// Reads the request of this person from a form or an address.
    pub(crate) fn request(
        self,
        ctx: &PageContext,
        sent: &Form,
        intent: Intent<'_>,
    ) -> Result<Request, Problem> {
        let mut fields = Map::new();
        if let Some(what) = sent.text("do") {
            let flag = self.field(what).filter(|flag| flag.is_flag());
            let flag =
                flag.ok_or_else(|| Problem::invalid("do: must be what the action can do"))?;
            fields.insert(flag.id().to_owned(), true.into());
        }
        let is_direct = intent == Intent::Direct;
        let dry_run = self.field("dry_run");
        let tried = dry_run.filter(|_| is_direct && !self.is_tried_before());
        for field in self.fields().chain(tried) {
            if let Some(value) = field.read(sent)? {
                fields.insert(field.id().to_owned(), value);
            }
        }
        if is_direct && self.is_tried_before() && !fields.contains_key("ids") {
            return Err(Problem::invalid("id: must be given"));
        }
        match intent {
            Intent::DryRun => {
                fields.insert("dry_run".to_owned(), true.into());
                fields.insert("reason".to_owned(), "a dry run".into());
            }
            Intent::As(digest) => {
                fields.insert("digest".to_owned(), digest.into());
            }
            Intent::Direct | Intent::Confirmed => {}
        }
        if self.has("reason") && intent != Intent::DryRun {
            fields.insert("reason".to_owned(), sent.needed("reason")?.into());
        }
        if self.has("budget") {
            fields.insert("budget".to_owned(), BUDGET.into());
        }
        if self.has("actor") {
            fields.insert("actor".to_owned(), ctx.actor().into());
        }
        Ok(Request::read(&self.name().replace('-', "_"), fields)?)
    }

    /// The command that does the same, without the reason.
    pub(crate) fn command(self, sent: &Form, flags: &str) -> String {
        let written = self.fields().map(|field| field.written(sent));
        format!(
            "tidegate {}{flags}{}",
            self.name(),
            written.collect::<String>()
        )
    }
}

/// Runs an action, and wakes a drain, because events may be ready now. If nothing could be done, that is a
/// conflict: the page showed an outdated state.
pub(crate) async fn done(ctx: &PageContext, request: &Request) -> Result<Answer, Problem> {
    let answer = tidegate_cli::answer(ctx.runtime(), request).await?;
    if !answer.is_done() {
        return Err(Problem::conflict(answer.text()));
    }
    ctx.runtime().wake().await;
    Ok(answer)
}

impl Field {
    /// The name in requests.
    fn id(self) -> &'static str {
        self.0.get_id().as_str()
    }

    /// The name in forms and addresses: that of the command line.
    pub(crate) fn name(self) -> String {
        self.0.get_long().unwrap_or(self.id()).replace('-', "_")
    }

    fn is_flag(self) -> bool {
        matches!(self.0.get_action(), ArgAction::SetTrue)
    }

    /// Whether it names events.
    pub(crate) fn is_id(self) -> bool {
        self.id() == "ids"
    }

    fn is<T: 'static>(self) -> bool {
        self.0.get_value_parser().type_id() == TypeId::of::<T>()
    }

    fn is_number(self) -> bool {
        self.is::<i64>() || self.is::<u32>() || self.is::<f64>()
    }

    /// Whether it is a time that may be written as a time ago.
    pub(crate) fn is_moment(self) -> bool {
        self.is::<TimeArg>()
    }

    fn read(self, sent: &Form) -> Result<Option<Value>, Problem> {
        let name = self.name();
        let values = sent.all(&name).map(|text| self.value(&name, text));
        let mut values = values.collect::<Result<Vec<Value>, Problem>>()?;
        Ok(match self.0.get_action() {
            _ if values.is_empty() && self.0.is_required_set() => {
                return Err(Problem::invalid(format!("{name}: must be given")));
            }
            _ if values.is_empty() => None,
            ArgAction::SetTrue => Some(true.into()),
            ArgAction::Append => Some(values.into()),
            _ => values.pop(),
        })
    }

    fn value(self, name: &str, text: &str) -> Result<Value, Problem> {
        let no_number = || Problem::invalid(format!("{name}: must be a number, got {text:?}"));
        if self.is_number() {
            let number = serde_json::from_str(text.trim()).ok();
            return number.filter(Value::is_number).ok_or_else(no_number);
        }
        Ok(json!(text.trim()))
    }

    /// Renders the field, with what was given before.
    pub(crate) fn input(self, given: &Form) -> Markup {
        let (name, help) = (self.name(), sentence(self.0.get_help()));
        let value = given.text(&name).unwrap_or_default();
        let label = title(&name);
        let such_as = help.split_once("such as ").map_or("", |(_, rest)| rest);
        let such_as = such_as.split([',', ';']).next().unwrap_or_default();
        let such_as = such_as.split(" for ").next().unwrap_or_default();
        html! {
            @if self.is_flag() { (tick(&help, &name, given.is_set(&name))) }
            @else if name == "status" { (select(&label, &name, value, &STATUSES)) }
            @else {
                label { span { (label) }
                    input name=(name) list=[suggestions(&name)] value=(value) title=(help) placeholder=(such_as.trim_end_matches('.')) required[self.0.is_required_set()] autocomplete="off";
                }
            }
        }
    }

    /// The flag or argument with its values, for a command line.
    fn written(self, sent: &Form) -> String {
        let name = self.name();
        let flag = name.replace('_', "-");
        let values = sent.all(&name).map(|value| {
            let value = quoted(value);
            match self.0.get_action() {
                ArgAction::SetTrue => format!(" --{flag}"),
                _ if self.0.is_positional() => format!(" {value}"),
                _ => format!(" --{flag} {value}"),
            }
        });
        values.collect()
    }
}

/// The name of a field or an action for people.
pub(crate) fn title(name: &str) -> String {
    let words = name.replace(['_', '-'], " ");
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn sentence(help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    format!("{}.", help.trim_end_matches('.'))
}
