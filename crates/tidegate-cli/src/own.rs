//! Owns the command line as a whole: the verbs that every program has, and those of one program.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, ColorChoice, Command, FromArgMatches, Parser};
use futures_util::future::{BoxFuture, FutureExt};
use serde_json::{Map, Value};
use tidegate::config::environment;
use tidegate::{Error, Lookup};
use tidegate_admin::logs::write_line;
use tidegate_admin::program::{Failure, Runtime};
use tidegate_admin::{Program, Request};

use crate::answer::{Answer, print, print_error, program_name};
use crate::args::{self, Cli, New, Verb};
use crate::verbs::describe;
use crate::{block_on, colour, fail, give, misused, report, verbs};

/// A program's command line: the verbs of every program, and the program's own verbs.
///
/// ```no_run
/// use serde_json::json;
/// use tidegate_cli::clap::Parser;
/// use tidegate_cli::{Answer, Ask, CommandLine};
/// # use tidegate::{Context, Dispatch, Done, Handlers};
/// # use tidegate_admin::{Program, Request};
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
///     /// The person to greet.
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
type AnswerAlone = dyn Fn(&ArgMatches) -> BoxFuture<'static, Result<Answer, Error>>;

/// A verb that not every program has.
struct Own {
    command: Command,
    answer: OwnAnswer,
    /// The schema of the document that it prints with `--json`.
    schema: Option<Value>,
}

/// How a verb is answered.
enum OwnAnswer {
    /// With the program and its settings.
    Served(Box<AnswerOwn>),
    /// Without the program and without settings.
    Alone(Box<AnswerAlone>),
}

/// The context of a program's own verb.
pub struct Ask {
    /// The program, with its settings.
    pub runtime: Runtime,
    /// Whether the answer is printed as JSON.
    pub json: bool,
}

impl Ask {
    /// Prints a message before the answer: to stdout for people, or to stderr if stdout holds the document of
    /// `--json`.
    pub fn say(&self, text: &str) {
        if self.json {
            print_error(text);
        } else {
            let _ = print(text);
        }
    }
}

/// The chosen verb.
enum Chosen {
    /// A verb that every program has.
    OfAll(Box<Verb>),
    /// The number of one of the program's own verbs, and its arguments.
    OfOwn(usize, ArgMatches),
}

/// The arguments of the process.
struct Arguments {
    chosen: Chosen,
    /// The verb's command.
    verb: Command,
    json: bool,
    /// The queue's schema, if a flag names it.
    schema: Option<String>,
}

impl CommandLine {
    /// Creates a command line with the verbs of every program.
    #[must_use]
    pub fn new(program: Program) -> Self {
        Self {
            program,
            verbs: Vec::new(),
        }
    }

    /// Adds a verb of the program. Its name, help and flags are those of `A`.
    ///
    /// # Panics
    /// If the program already has a verb of this name.
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
        self.with(A::command(), OwnAnswer::Served(Box::new(answer)))
    }

    /// Adds the verb `new`, which writes a starter project and needs neither settings nor a database.
    ///
    /// # Panics
    /// If the program already has a verb of this name.
    #[must_use]
    pub fn starter(self) -> Self {
        self.alone(|new: New| async move { verbs::new::new(&new) })
    }

    /// Adds a verb of the program that needs neither settings nor a database.
    ///
    /// # Panics
    /// If the program already has a verb of this name.
    #[must_use]
    pub fn alone<A, F>(self, answer: impl Fn(A) -> F + 'static) -> Self
    where
        A: Parser + 'static,
        F: Future<Output = Result<Answer, Error>> + Send + 'static,
    {
        let answer = move |matches: &ArgMatches| match arguments(matches) {
            Ok(arguments) => answer(arguments).boxed(),
            Err(error) => std::future::ready(Err(error)).boxed(),
        };
        self.with(A::command(), OwnAnswer::Alone(Box::new(answer)))
    }

    fn with(mut self, command: Command, answer: OwnAnswer) -> Self {
        let name = command.get_name();
        let mut own = self.verbs.iter().map(|own| own.command.get_name());
        let taken = args::command().find_subcommand(name).is_some() || own.any(|own| own == name);
        assert!(!taken, "there is a verb {name:?} already");
        let schema = report::schema_of(name);
        self.verbs.push(Own {
            command,
            answer,
            schema,
        });
        self
    }

    /// Sets the JSON Schema of the document that one of the program's own verbs prints with `--json`, for
    /// `schema VERB`.
    ///
    /// # Panics
    /// If the program has not added a verb of this name.
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

    /// Runs the verb in the process's arguments and returns the exit code: 0 done, 1 failed, 2 wrong usage, 3
    /// the doctor found something.
    #[must_use]
    pub fn run(self) -> ExitCode {
        #[cfg(feature = "aws")]
        tidegate_aws::install();
        let arguments = match self.arguments() {
            Ok(chosen) => chosen,
            Err(error) => return misused(&error),
        };
        let origin = self.program.origin();
        let lookup = |name: &str| match &arguments.schema {
            Some(schema) if name == "TIDEGATE_SCHEMA" => Some(schema.clone()),
            _ => environment(name),
        };
        let (json, chosen) = (arguments.json, arguments.chosen);
        let answered = match self.describe(&chosen) {
            Some(answer) => answer.map_err(Failure::from),
            None => block_on(origin, self.answer(chosen, json, &lookup)),
        };
        match answered {
            Ok(answer) => give(&answer, json),
            Err(failed) => fail(&failed, &arguments.verb, json),
        }
    }

    /// The whole command line, with the program's own verbs.
    fn command(&self) -> Command {
        let own = self.verbs.iter().map(|own| own.command.clone());
        let colours = if colour::is_refused() {
            ColorChoice::Never
        } else {
            ColorChoice::Auto
        };
        let shown = |flag: Arg| flag.hide(!self.program.takes_targets());
        let migrate = |verb: Command| verb.mut_arg("targets", shown).mut_arg("dry_run", shown);
        let all = args::command().mut_subcommand("migrate", migrate);
        all.subcommands(own).color(colours)
    }

    /// Answers the verbs about the command line itself, which need no program; `None` for any other verb.
    fn describe(&self, chosen: &Chosen) -> Option<Result<Answer, Error>> {
        let Chosen::OfAll(verb) = chosen else {
            return None;
        };
        match &**verb {
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

    /// The schemas of all verbs that have one, by verb, and the schema of a failure under `error`.
    fn schemas(&self) -> Map<String, Value> {
        let all = args::command();
        let all = all.get_subcommands().map(|verb| verb.get_name().to_owned());
        let all = all.chain(["error".to_owned()]);
        let all = all.filter_map(|verb| report::schema_of(&verb).map(|schema| (verb, schema)));
        let own = self.verbs.iter().filter_map(|own| {
            let name = own.command.get_name().to_owned();
            own.schema.clone().map(|schema| (name, schema))
        });
        all.chain(own).collect()
    }

    fn arguments(&self) -> Result<Arguments, clap::Error> {
        let mut command = self.command();
        let matches = command.try_get_matches_from_mut(std::env::args_os())?;
        let verb = matches.subcommand_name().unwrap_or_default();
        let verb = command.find_subcommand(verb).cloned().unwrap_or_default();
        let own = matches.subcommand().and_then(|(name, matches)| {
            let number = self
                .verbs
                .iter()
                .position(|own| own.command.get_name() == name)?;
            Some(Chosen::OfOwn(number, matches.clone()))
        });
        let chosen = match own {
            Some(own) => own,
            None => Chosen::OfAll(Box::new(Cli::from_arg_matches(&matches)?.verb)),
        };
        Ok(Arguments {
            chosen,
            verb,
            json: matches.get_flag("json"),
            schema: matches.get_one("schema").cloned(),
        })
    }

    async fn answer(
        self,
        chosen: Chosen,
        json: bool,
        lookup: Lookup<'_>,
    ) -> Result<Answer, Failure> {
        let start = |program: Program| {
            let mut runtime = program.start(lookup)?;
            runtime.metrics_to = write_line;
            Ok::<_, Error>(runtime)
        };
        if let Chosen::OfAll(verb) = &chosen
            && let Verb::Listed(Request::Migrate(wanted)) = &**verb
            && wanted.print
            && ["DATABASE_URL", "DATABASE_SECRET_ID"].map(lookup) == [None, None]
        {
            let report = self.program.print(lookup, wanted.roles).await?;
            return Ok(verbs::printed(wanted, &report, json)?);
        }
        match chosen {
            Chosen::OfAll(verb) => verbs::answer(&start(self.program)?, *verb, json).await,
            Chosen::OfOwn(number, matches) => match &self.verbs[number].answer {
                OwnAnswer::Served(answer) => {
                    let runtime = start(self.program)?;
                    Ok(answer(Ask { runtime, json }, &matches).await?)
                }
                OwnAnswer::Alone(answer) => Ok(answer(&matches).await?),
            },
        }
    }
}

fn arguments<A: FromArgMatches>(matches: &ArgMatches) -> Result<A, Error> {
    A::from_arg_matches(matches).map_err(|error| Error::Invalid(error.to_string()))
}
