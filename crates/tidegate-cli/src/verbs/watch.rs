//! The live view: looks at intervals, draws what it saw, ends by a key. What the picture is,
//! [`crate::screen`] says; the terminal is given back however it ends.

use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tidegate::program::{Service, stats_on, stop_signal};
use tidegate::{Database, Error, queue};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_postgres::Client;

use crate::answer::{Answer, Failed, document};
use crate::screen::{Look, Screen};
use crate::text;

/// A database that takes longer for a look is away.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// Counting a queue of millions takes a second. It is done so seldom that it takes a tenth of the time.
const REST_AFTER_COUNTING: u32 = 9;

/// How soon the reader of keys notices that the view has ended.
const KEY_WAIT: Duration = Duration::from_millis(100);

pub async fn watch(service: &Service, interval: Duration, json: bool) -> Result<Answer, Failed> {
    if json {
        return Err(Error::Invalid("--watch: cannot be used with --json".to_owned()).into());
    }
    if !std::io::stdout().is_terminal() {
        let needed = "--watch: stdout must be a terminal; use `tidegate status --json`";
        return Err(Error::Invalid(needed.to_owned()).into());
    }
    let screen = show(service.database.clone(), interval).await?;
    let Some(stats) = screen.stats() else {
        return Ok(Answer::new(serde_json::Value::Null, "nothing was seen"));
    };
    Ok(Answer::new(document(stats)?, text::depth(stats)))
}

/// The terminal while it is ours.
struct Screenful(DefaultTerminal);

impl Screenful {
    /// Takes the terminal over. A panic gives it back as well: ratatui sees to that.
    fn open() -> Result<Self, Error> {
        ratatui::try_init().map(Self).map_err(|error| {
            // It may have been taken over half.
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

async fn show(database: Database, interval: Duration) -> Result<Screen, Error> {
    let mut screen = Screen::new(interval);
    let mut terminal = Screenful::open()?;
    let mut keys = keys();
    let (sink, mut looks) = mpsc::channel(1);
    let follower = tokio::spawn(follow(database, interval, sink));
    let stopped = stop_signal();
    tokio::pin!(stopped);
    let ended = loop {
        if let Err(error) = terminal.0.draw(|frame| screen.draw(frame)) {
            break Err(broken(&error));
        }
        tokio::select! {
            look = looks.recv() => match look {
                Some(look) => screen.take(look),
                None => break Ok(()),
            },
            key = keys.recv() => match key {
                Some(Ok(Key::Redraw)) => {}
                Some(Err(error)) => break Err(broken(&error)),
                Some(Ok(Key::End)) | None => break Ok(()),
            },
            () = &mut stopped => break Ok(()),
        }
    };
    follower.abort();
    ended.map(|()| screen)
}

/// What a person or the window did.
enum Key {
    End,
    Redraw,
}

/// Reads keys on a thread of its own, since reading blocks; it ends soon after its receiver is gone.
fn keys() -> mpsc::Receiver<std::io::Result<Key>> {
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

fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Key::End),
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                Some(Key::End)
            }
            _ => None,
        },
        Event::Resize(..) => Some(Key::Redraw),
        _ => None,
    }
}

/// Looks at every interval, on one connection for as long as it holds.
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
    /// Up to when finished events are counted.
    since: Option<SystemTime>,
    /// When all figures may be asked for again.
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
