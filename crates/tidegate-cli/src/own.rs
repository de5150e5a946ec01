//! Owns the command line as a whole: the verbs that every program has, and those of one program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgMatches, ColorChoice, Command, CommandFactory, FromArgMatches, Parser};
use futures_util::future::{BoxFuture, FutureExt};
use serde_json::{Map, Value};
use tidegate::config::environment;
use tidegate::program::Service;
use tidegate::{Error, Lookup, Program};

use crate::answer::{Answer, Failed, print};
use crate::args::{Cli, New, Verb};
use crate::verbs::describe;
use crate::{block_on, colour, fail, give, misused, report, verbs};

/// A program's command line, with verbs of its own beside those that every program has.
///
/// ```no_run
/// use serde_json::json;
/// use tidegate_cli::clap::Parser;
/// use tidegate_cli::{Answer, Ask, CommandLine};
/// # use tidegate::{Context, Dispatch, Done, Handlers, Program};
/// # tidegate::events! { pub enum Shop { Opened(()) = "opened" } }
/// # struct Handling;
/// # impl Dispatch for Handling {
/// #     type Event = Shop;
/// #     fn handlers<'a>(&'a self, event: &'a Shop, _: &'a Context) -> Handlers<'a> {
/// #         match event {
/// #             Shop::Opened(()) => Handlers::one("greet", async { Ok(Done::ok()) }),
/// #         }
/// #     }
/// # }
///
/// /// Say hello.
/// #[derive(Parser)]
/// #[command(name = "hello")]
/// struct Hello {
///     /// To whom.
///     name: String,
/// }
///
/// fn main() -> std::process::ExitCode {
///     CommandLine::new(Program::new(|_settings| Ok(Handling)))
///         .verb(|_: Ask, hello: Hello| async move {
///             Ok(Answer::new(json!({"hello": hello.name}), format!("Hello, {}", hello.name)))
///         })
///         .run()
/// }
/// ```
pub struct CommandLine {
    program: Program,
    verbs: Vec<Own>,
}

type AnswerOwn = dyn Fn(Ask, &ArgMatches) -> BoxFuture<'static, Result<Answer, Error>>;

/// A verb that not every program has.
struct Own {
    command: Command,
    answer: Answers,
    /// Of what it prints with `--json`.
    schema: Option<Value>,
}

enum Answers {
    /// The program, which has its settings then.
    Program(Box<AnswerOwn>),
    /// [`verbs::new`], which asks nobody.
    New,
}

/// Who asks, and of what: what a program's own verb has at hand.
pub struct Ask {
    /// The program, with its settings.
    pub service: Arc<Service>,
    /// Whether the answer will be printed as JSON.
    pub json: bool,
}

impl Ask {
    /// Says something before the answer: to people on stdout, or beside the one document of `--json`, on stderr.
    pub fn say(&self, text: &str) {
        if self.json {
            eprintln!("{text}");
        } else {
            let _ = print(text);
        }
    }
}

/// What was asked for.
enum Asked {
    OfAll(Verb),
    OfOwn(usize, ArgMatches),
}

impl CommandLine {
    /// With the verbs that every program has.
    #[must_use]
    pub fn new(program: Program) -> Self {
        Self {
            program,
            verbs: Vec::new(),
        }
    }

    /// With a verb of its own. Its name, help and flags are those of `A`.
    ///
    /// # Panics
    /// When the program has a verb of this name already.
    #[must_use]
    pub fn verb<A, F>(self, answer: impl Fn(Ask, A) -> F + 'static) -> Self
    where
        A: Parser + 'static,
        F: Future<Output = Result<Answer, Error>> + Send + 'static,
    {
        let answer = move |ask: Ask, matches: &ArgMatches| match arguments(matches) {
            Ok(arguments) => answer(ask, arguments).boxed(),
            Err(error) => std::future::ready(Err(error)).boxed(),
        };
        self.with(A::command(), Answers::Program(Box::new(answer)))
    }

    /// With the verb `new`, which writes a project to begin with and needs neither settings nor a database.
    ///
    /// # Panics
    /// When the program has a verb of this name already.
    #[must_use]
    pub fn starter(self) -> Self {
        self.with(New::command(), Answers::New)
    }

    fn with(mut self, command: Command, answer: Answers) -> Self {
        let name = command.get_name();
        let mut own = self.verbs.iter().map(|own| own.command.get_name());
        let taken = Cli::command().find_subcommand(name).is_some() || own.any(|own| own == name);
        assert!(!taken, "there is a verb {name:?} already");
        let schema = report::schema_of(name);
        self.verbs.push(Own {
            command,
            answer,
            schema,
        });
        self
    }

    /// With the JSON Schema of what a verb of its own prints with `--json`, for `schema VERB`.
    ///
    /// # Panics
    /// When the program has no verb of its own of this name.
    #[must_use]
    pub fn schema(mut self, verb: &str, schema: Value) -> Self {
        let mut own = self.verbs.iter_mut();
        let own = own.find(|own| own.command.get_name() == verb);
        assert!(
            own.is_some(),
            "there is no verb {verb:?} of the program's own"
        );
        if let Some(own) = own {
            own.schema = Some(schema);
        }
        self
    }

    /// Does what the process's arguments ask for, and tells how it ended: 0 done, 1 failed, 2 wrong usage, 3 the doctor
    /// found something.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let (asked, json) = match self.asked() {
            Ok(asked) => asked,
            Err(error) => return misused(&error),
        };
        if let Some(answer) = self.describe(&asked) {
            return match answer {
                Ok(answer) => give(&answer, json),
                Err(error) => fail(&error.into(), json),
            };
        }
        let origin = self.program.origin();
        match block_on(origin, self.answer(asked, json, &environment)) {
            Ok(answer) => give(&answer, json),
            Err(failed) => fail(&failed, json),
        }
    }

    /// All that can be asked for.
    fn command(&self) -> Command {
        let own = self.verbs.iter().map(|own| own.command.clone());
        let colours = if colour::is_refused() {
            ColorChoice::Never
        } else {
            ColorChoice::Auto
        };
        Cli::command().subcommands(own).color(colours)
    }

    /// Answers what is about the command line itself.
    fn describe(&self, asked: &Asked) -> Option<Result<Answer, Error>> {
        let Asked::OfAll(verb) = asked else {
            return None;
        };
        match verb {
            Verb::Completions { shell } => Some(describe::completions(
                self.command(),
                &program_name(),
                *shell,
            )),
            Verb::Man { dir } => Some(describe::man(
                self.command(),
                &program_name(),
                dir.as_deref(),
            )),
            Verb::Schema { verb } => Some(describe::schema(self.schemas(), verb.as_deref())),
            _ => None,
        }
    }

    /// By verb, those of all verbs that have one, and that of a failure.
    fn schemas(&self) -> Map<String, Value> {
        let all = Cli::command();
        let all = all.get_subcommands().map(|verb| verb.get_name().to_owned());
        let all = all.chain(["error".to_owned()]);
        let all = all.filter_map(|verb| report::schema_of(&verb).map(|schema| (verb, schema)));
        let own = self.verbs.iter().filter_map(|own| {
            let name = own.command.get_name().to_owned();
            own.schema.clone().map(|schema| (name, schema))
        });
        all.chain(own).collect()
    }

    fn asked(&self) -> Result<(Asked, bool), clap::Error> {
        let matches = self.command().try_get_matches()?;
        let json = matches.get_flag("json");
        let own = matches.subcommand().and_then(|(name, matches)| {
            let number = self
                .verbs
                .iter()
                .position(|own| own.command.get_name() == name)?;
            Some(Asked::OfOwn(number, matches.clone()))
        });
        match own {
            Some(own) => Ok((own, json)),
            None => Ok((Asked::OfAll(Cli::from_arg_matches(&matches)?.verb), json)),
        }
    }

    async fn answer(self, asked: Asked, json: bool, lookup: Lookup<'_>) -> Result<Answer, Failed> {
        match asked {
            Asked::OfAll(verb) => {
                let service = self.program.start(lookup)?;
                verbs::answer(&service, verb, json).await
            }
            Asked::OfOwn(number, matches) => match &self.verbs[number].answer {
                Answers::Program(answer) => {
                    let service = Arc::new(self.program.start(lookup)?);
                    Ok(answer(Ask { service, json }, &matches).await?)
                }
                Answers::New => Ok(verbs::new::new(&arguments(&matches)?)?),
            },
        }
    }
}

fn arguments<A: FromArgMatches>(matches: &ArgMatches) -> Result<A, Error> {
    A::from_arg_matches(matches).map_err(|error| Error::Invalid(error.to_string()))
}

/// The name that this program was called by.
fn program_name() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_stem);
    name.map_or_else(
        || "tidegate".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}
