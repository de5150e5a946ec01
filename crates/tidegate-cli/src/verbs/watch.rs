//! The live view. It queries the database at intervals, draws the result, and runs the actions of keys.
//! [`crate::screen`] defines the picture and the keys. The terminal is restored however the view ends.

use std::cmp::Reverse;
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tidegate::look::ListRequest;
use tidegate::program::{Service, stats_on, stop_signal};
use tidegate::{Database, Error, queue};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_postgres::Client;

use super::{look, operate};
use crate::answer::{Answer, Failed, document};
use crate::args::{AuditArgs, PauseArgs, ReplayArgs, RequeueArgs};
use crate::screen::{Action, EVENTS, Key, Look, Screen, Step, Told, View, Wish};
use crate::{colour, text};

/// A database that takes longer for a query counts as unavailable.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// The time limit of an action, which may wait for locks.
const ACT_LIMIT: Duration = Duration::from_secs(30);

/// The shortest interval between two queries of an open list.
const REFRESH: Duration = Duration::from_secs(1);

/// Counting a queue of millions takes a second. After each count the view rests for this multiple of the count's
/// duration, so that counting takes at most a tenth of the time.
const REST_AFTER_COUNTING: u32 = 9;

/// The interval at which the reader of keys checks whether the view has ended.
const KEY_WAIT: Duration = Duration::from_millis(100);

pub async fn watch(service: &Service, interval: Duration, json: bool) -> Result<Answer, Failed> {
    if json {
        return Err(Error::Invalid("--watch: cannot be used with --json".to_owned()).into());
    }
    if !std::io::stdout().is_terminal() {
        let needed = "--watch: stdout must be a terminal; use `tidegate status --json`";
        return Err(Error::Invalid(needed.to_owned()).into());
    }
    let screen = show(service, interval).await?;
    let Some(stats) = screen.stats() else {
        return Ok(Answer::new(serde_json::Value::Null, "nothing was seen"));
    };
    Ok(Answer::new(document(stats)?, text::depth(stats)))
}

/// The terminal while the view owns it.
struct Screenful(DefaultTerminal);

impl Screenful {
    /// Takes over the terminal. ratatui also restores it after a panic.
    fn open() -> Result<Self, Error> {
        ratatui::try_init().map(Self).map_err(|error| {
            // Part of the setup may have succeeded.
            let _ = ratatui::try_restore();
            broken(&error)
        })
    }
}

impl Drop for Screenful {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn broken(error: &std::io::Error) -> Error {
    Error::Config(format!("terminal: {error}"))
}

/// Requested work, each with the time that it took.
type Asked<'a> = FuturesUnordered<BoxFuture<'a, (Told, Duration)>>;

/// The state of the open view.
struct Open<'a> {
    service: &'a Service,
    screen: Screen,
    asked: Asked<'a>,
    /// The number of actions under way.
    acting: usize,
    /// The earliest time to query the open page again.
    refresh_at: Instant,
}

async fn show(service: &Service, interval: Duration) -> Result<Screen, Error> {
    let is_coloured = colour::is_wanted(std::io::stdout().is_terminal());
    let mut open = Open {
        service,
        screen: Screen::new(interval, is_coloured),
        asked: FuturesUnordered::new(),
        acting: 0,
        refresh_at: Instant::now(),
    };
    let mut terminal = Screenful::open()?;
    let mut keys = keys();
    let (sink, mut looks) = mpsc::channel(1);
    let follower = tokio::spawn(follow(service.database.clone(), interval, sink));
    let stopped = stop_signal();
    tokio::pin!(stopped);
    let ended = loop {
        if let Err(error) = terminal.0.draw(|frame| open.screen.draw(frame)) {
            break Err(broken(&error));
        }
        let goes_on = tokio::select! {
            look = looks.recv() => look.is_some_and(|look| open.look(look)),
            Some((told, took)) = open.asked.next() => open.told(told, took),
            key = keys.recv() => match key {
                Some(Ok(Pressed::Resized)) => true,
                Some(Ok(Pressed::Key(key))) => open.press(key),
                Some(Err(error)) => break Err(broken(&error)),
                Some(Ok(Pressed::Stop)) | None => break Ok(()),
            },
            () = &mut stopped => break Ok(()),
        };
        if !goes_on {
            open.finish().await;
            break Ok(());
        }
    };
    follower.abort();
    ended.map(|()| open.screen)
}

impl<'a> Open<'a> {
    fn look(&mut self, look: Result<Look, String>) -> bool {
        self.screen.take(look);
        if Instant::now() >= self.refresh_at
            && let Some(wish) = self.screen.refresh()
        {
            self.ask(wish);
        }
        true
    }

    fn told(&mut self, told: Told, took: Duration) -> bool {
        if matches!(told, Told::Done(_) | Told::Failed(_)) {
            self.acting = self.acting.saturating_sub(1);
        }
        self.refresh_at = Instant::now() + (took * REST_AFTER_COUNTING).max(REFRESH);
        if let Some(wish) = self.screen.told(told) {
            self.ask(wish);
        }
        true
    }

    /// Handles a key. Returns false if the view must end.
    fn press(&mut self, key: Key) -> bool {
        match self.screen.press(key) {
            Step::Stay => true,
            Step::Ask(wish) => {
                self.ask(wish);
                true
            }
            Step::End => false,
        }
    }

    fn ask(&mut self, wish: Wish) {
        self.acting += usize::from(matches!(wish, Wish::Act { .. }));
        let service: &'a Service = self.service;
        let begun = Instant::now();
        let work = async move { (grant(service, wish).await, begun.elapsed()) };
        self.asked.push(work.boxed());
    }

    /// Waits for actions under way, so that quitting does not interrupt them.
    async fn finish(&mut self) {
        while self.acting > 0
            && let Some((told, took)) = self.asked.next().await
        {
            self.told(told, took);
        }
    }
}

/// Runs a requested query or action with the functions of the verbs.
async fn grant(service: &Service, wish: Wish) -> Told {
    let limit = match wish {
        Wish::Act { .. } => ACT_LIMIT,
        _ => LOOK_LIMIT,
    };
    let granted = async {
        match wish {
            Wish::Events { kind, view, before } => events(service, kind, view, before).await,
            Wish::Show(id) => {
                let answer = look::show(service, id).await?;
                Ok(Told::Shown {
                    event: answer.document,
                    text: answer.text,
                })
            }
            Wish::Act { action, reason } => act(service, action, reason).await,
        }
    };
    match timeout(limit, granted).await {
        Ok(Ok(told)) => told,
        Ok(Err(failed)) => Told::Failed(failed.error.to_string()),
        Err(_) => Told::Failed(format!(
            "no answer within {limit:?}: check whether it was done"
        )),
    }
}

/// Returns a page of events, newest first. A view of two states merges two lists.
async fn events(
    service: &Service,
    kind: String,
    view: View,
    before: Option<i64>,
) -> Result<Told, Failed> {
    let statuses = view
        .statuses()
        .iter()
        .map(|status| Some((*status).to_owned()));
    let statuses: Vec<Option<String>> = statuses.collect();
    let statuses = if statuses.is_empty() {
        vec![None]
    } else {
        statuses
    };
    let mut events = Vec::new();
    for status in statuses {
        let asked = ListRequest {
            status,
            kind: Some(kind.clone()),
            before,
            limit: Some(EVENTS),
            ..ListRequest::default()
        };
        events.extend(service.list(&asked).await?.events);
    }
    events.sort_by_key(|event| Reverse(event["id"].as_i64()));
    events.truncate(EVENTS as usize);
    Ok(Told::Events {
        kind,
        view,
        before,
        events,
    })
}

async fn act(service: &Service, action: Action, reason: String) -> Result<Told, Failed> {
    let asked = |kind: String| PauseArgs {
        kind,
        reason: Some(reason.clone()),
        actor: None,
    };
    let audit = || AuditArgs {
        reason: reason.clone(),
        actor: None,
    };
    let answer = match action {
        Action::Pause(kind) => operate::pause(service, asked(kind)).await?,
        Action::Resume(kind) => operate::resume(service, asked(kind)).await?,
        Action::Replay(id) => {
            let args = ReplayArgs::of_one(id, audit());
            operate::replay(service, args).await?
        }
        Action::Requeue(id) => {
            let (ids, audit) = (vec![id], audit());
            operate::requeue(service, RequeueArgs { ids, audit }).await?
        }
    };
    let text = answer.text.lines().collect::<Vec<_>>().join("; ");
    Ok(match answer.code {
        0 => Told::Done(text),
        _ => Told::Failed(text),
    })
}

/// An input from the keyboard or the window.
enum Pressed {
    Key(Key),
    Stop,
    Resized,
}

/// Reads keys on its own thread, because reading blocks. The thread ends soon after its receiver is dropped.
fn keys() -> mpsc::Receiver<std::io::Result<Pressed>> {
    let (sink, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sink.is_closed() {
            let key = match event::poll(KEY_WAIT) {
                Ok(true) => event::read().map(|event| meaning(&event)),
                Ok(false) => continue,
                Err(error) => Err(error),
            };
            let is_over = key.is_err();
            if let Some(key) = key.transpose()
                && sink.blocking_send(key).is_err()
            {
                return;
            }
            if is_over {
                return;
            }
        }
    });
    keys
}

fn meaning(event: &Event) -> Option<Pressed> {
    let key = match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        Event::Resize(..) => return Some(Pressed::Resized),
        _ => return None,
    };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(Pressed::Key(match key.code {
        KeyCode::Char('c' | 'd') if is_control => return Some(Pressed::Stop),
        KeyCode::Char(c) if !is_control => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Erase,
        _ => return None,
    }))
}

/// Queries the database at every interval, on one connection for as long as it works.
async fn follow(database: Database, interval: Duration, sink: mpsc::Sender<Result<Look, String>>) {
    let mut eye = Eye {
        database,
        client: None,
        since: None,
        count_at: Instant::now(),
    };
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let late = || Err(format!("no answer within {LOOK_LIMIT:?}"));
        let look = timeout(LOOK_LIMIT, eye.look()).await;
        let look = look.map_or_else(|_| late(), |look| look.map_err(|error| error.to_string()));
        if look.is_err() {
            eye.client = None;
            eye.since = None;
        }
        if sink.send(look).await.is_err() {
            return;
        }
    }
}

struct Eye {
    database: Database,
    client: Option<Client>,
    /// The time up to which finished events were counted.
    since: Option<SystemTime>,
    /// The earliest time to query all figures again.
    count_at: Instant,
}

impl Eye {
    async fn look(&mut self) -> Result<Look, Error> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.database.connect().await?,
        };
        let pulse = queue::pulse(&client, self.since).await?;
        let time = self
            .since
            .and_then(|since| pulse.at.duration_since(since).ok())
            .filter(|time| !time.is_zero());
        #[expect(
            clippy::cast_precision_loss,
            reason = "nobody finishes 2^53 events between two looks"
        )]
        let rate = time.map(|time| pulse.finished as f64 / time.as_secs_f64());
        let begun = Instant::now();
        let stats = if begun >= self.count_at {
            let stats = stats_on(&client).await?;
            self.count_at = Instant::now() + begun.elapsed() * REST_AFTER_COUNTING;
            Some(stats)
        } else {
            None
        };
        self.since = Some(pulse.at);
        self.client = Some(client);
        Ok(Look {
            oldest_age_ms: pulse.oldest_age_ms,
            rate,
            stats,
            at_work: pulse.at_work,
        })
    }
}
