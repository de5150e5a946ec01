//! Owns the live view: what it has seen so far, which page is open, what keys do there, and the picture. It queries
//! nothing and knows no terminal. It returns its requests as a [`Wish`].
//!
//! Pages: the kinds ([`overview`]), the events of one kind ([`events`]), one event ([`detail`]). On top of them, a
//! prompt for a reason ([`prompt`]) or the list of keys.

mod detail;
mod events;
mod overview;
mod prompt;
mod style;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};
use serde_json::Value;
use tidegate::invocation::StatsReport;

use self::detail::Detail;
pub use self::events::View;
use self::events::{Events, PAGE};
use self::overview::Overview;
use self::prompt::{Prompt, Typed};
use self::style::Style;

/// The result of one query.
pub struct Look {
    /// Age of the oldest live event.
    pub oldest_age_ms: u64,
    /// Events that ended per second since the query before; `None` for the first one.
    pub rate: Option<f64>,
    /// All figures; `None` if they cost too much for every query.
    pub stats: Option<StatsReport>,
    /// The progress that running handlers report.
    pub at_work: Vec<Value>,
}

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Enter,
    Escape,
    Erase,
    Char(char),
}

/// A request of the view: a query or an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// A page of events of a kind, before an id if one is set.
    Events {
        kind: String,
        view: View,
        before: Option<i64>,
    },
    /// Everything about one event.
    Show(i64),
    /// An operator's action, with its reason.
    Act { action: Action, reason: String },
}

/// An action that an operator may run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Pause(String),
    Resume(String),
    Replay(i64),
    Requeue(i64),
}

impl Action {
    /// Returns the title of the prompt.
    fn title(&self) -> String {
        match self {
            Self::Pause(kind) => format!("pause {kind}"),
            Self::Resume(kind) => format!("resume {kind}"),
            Self::Replay(id) => format!("replay event {id}"),
            Self::Requeue(id) => format!("requeue event {id}"),
        }
    }
}

/// The result of a request.
pub enum Told {
    /// A page of events.
    Events {
        kind: String,
        view: View,
        before: Option<i64>,
        events: Vec<Value>,
    },
    /// Everything about an event: its document, and the text for people.
    Shown { event: Value, text: String },
    /// An action succeeded, with its message.
    Done(String),
    /// It failed.
    Failed(String),
}

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Stay,
    Ask(Wish),
    End,
}

/// Everything seen so far, and the open page.
pub struct Screen {
    interval: Duration,
    style: Style,
    overview: Overview,
    events: Option<Events>,
    detail: Option<Detail>,
    prompt: Option<Prompt>,
    is_helping: bool,
    fault: Option<String>,
    /// The message of the last action, and whether it is an error.
    said: Option<(String, bool)>,
}

impl Screen {
    /// Creates a screen that has seen nothing yet.
    pub fn new(interval: Duration, is_coloured: bool) -> Self {
        Self {
            interval,
            style: Style { is_coloured },
            overview: Overview::default(),
            events: None,
            detail: None,
            prompt: None,
            is_helping: false,
            fault: None,
            said: None,
        }
    }

    /// Takes the result of a query, or the reason of its failure.
    pub fn take(&mut self, look: Result<Look, String>) {
        match look {
            Ok(look) => {
                self.fault = None;
                self.overview.take(look);
            }
            Err(fault) => {
                self.fault = Some(fault);
                self.overview.lose_rate();
            }
        }
    }

    /// Returns the latest figures.
    pub fn stats(&self) -> Option<&StatsReport> {
        self.overview.stats()
    }

    /// Returns the request that renews the open page, if its content becomes outdated.
    pub fn refresh(&mut self) -> Option<Wish> {
        if self.detail.is_some() || self.prompt.is_some() {
            return None;
        }
        self.events.as_mut().and_then(Events::refresh)
    }

    /// Takes the result of a request. Returns the next request, if there is one.
    pub fn told(&mut self, told: Told) -> Option<Wish> {
        match told {
            Told::Events {
                kind,
                view,
                before,
                events,
            } => {
                if let Some(page) = self.events.as_mut().filter(|page| page.is_of(&kind, view)) {
                    page.fill(before, events);
                }
                None
            }
            Told::Shown { event, text } => {
                // If the person has gone back in the meantime, the result is not shown.
                if self.events.is_some() {
                    self.detail = Some(Detail::new(event, &text));
                }
                None
            }
            Told::Done(text) => {
                self.say(&text, false);
                if let Some(detail) = &self.detail {
                    return Some(Wish::Show(detail.id()));
                }
                self.events.as_mut().and_then(Events::refresh)
            }
            Told::Failed(text) => {
                if let Some(page) = &mut self.events {
                    page.is_loading = false;
                }
                self.say(&text, true);
                None
            }
        }
    }

    fn say(&mut self, text: &str, is_bad: bool) {
        let line = text.lines().next().unwrap_or_default();
        self.said = Some((line.to_owned(), is_bad));
    }

    /// Handles a key.
    pub fn press(&mut self, key: Key) -> Step {
        if let Some(prompt) = &mut self.prompt {
            return match prompt.press(key) {
                Typed::Goes => Step::Stay,
                Typed::Cancelled => {
                    self.prompt = None;
                    Step::Stay
                }
                Typed::Given { action, reason } => {
                    self.prompt = None;
                    Step::Ask(Wish::Act { action, reason })
                }
            };
        }
        if self.is_helping {
            self.is_helping = false;
            return Step::Stay;
        }
        self.said = None;
        match key {
            Key::Char('?') => {
                self.is_helping = true;
                Step::Stay
            }
            Key::Escape | Key::Char('q' | 'Q') => self.back(),
            _ if self.detail.is_some() => self.press_in_detail(key),
            _ if self.events.is_some() => self.press_in_events(key),
            _ => self.press_in_overview(key),
        }
    }

    fn back(&mut self) -> Step {
        if self.detail.take().is_some() || self.events.take().is_some() {
            return Step::Stay;
        }
        Step::End
    }

    fn press_in_overview(&mut self, key: Key) -> Step {
        let Some(kind) = self.overview.selected() else {
            return Step::Stay;
        };
        match key {
            Key::Enter => self.open(kind, View::All),
            Key::Char('l') => self.open(kind, View::Live),
            Key::Char('d') => self.open(kind, View::Dead),
            Key::Char('p') => self.ask_to_pause(kind),
            other => {
                self.overview.walk(other);
                Step::Stay
            }
        }
    }

    fn open(&mut self, kind: String, view: View) -> Step {
        let mut page = Events::new(kind, view);
        let wish = page.refresh();
        self.events = Some(page);
        wish.map_or(Step::Stay, Step::Ask)
    }

    fn ask_to_pause(&mut self, kind: String) -> Step {
        let action = if self.overview.is_paused(&kind) {
            Action::Resume(kind)
        } else {
            Action::Pause(kind)
        };
        self.ask(action)
    }

    fn ask(&mut self, action: Action) -> Step {
        self.prompt = Some(Prompt::new(action));
        Step::Stay
    }

    fn press_in_events(&mut self, key: Key) -> Step {
        let Some(page) = &mut self.events else {
            return Step::Stay;
        };
        let kind = page.kind().to_owned();
        match key {
            Key::Char('a') => self.open(kind, View::All),
            Key::Char('l') => self.open(kind, View::Live),
            Key::Char('d') => self.open(kind, View::Dead),
            Key::Char('p') => self.ask_to_pause(kind),
            Key::Char('r' | 'u') | Key::Enter => {
                let Some((id, is_live)) = page.selected() else {
                    return Step::Stay;
                };
                match key {
                    Key::Enter => Step::Ask(Wish::Show(id)),
                    _ => self.ask_about(key, id, is_live),
                }
            }
            other => page.walk(other).map_or(Step::Stay, Step::Ask),
        }
    }

    /// Opens the prompt for an event: a finished event can be replayed, a live one requeued.
    fn ask_about(&mut self, key: Key, id: i64, is_live: bool) -> Step {
        match (key, is_live) {
            (Key::Char('r'), false) => self.ask(Action::Replay(id)),
            (Key::Char('u'), true) => self.ask(Action::Requeue(id)),
            (Key::Char('r'), true) => {
                self.say("a live event is not replayed: u requeues it", true);
                Step::Stay
            }
            _ => {
                self.say(
                    "an event that has ended is not requeued: r replays it",
                    true,
                );
                Step::Stay
            }
        }
    }

    fn press_in_detail(&mut self, key: Key) -> Step {
        let Some(detail) = &mut self.detail else {
            return Step::Stay;
        };
        match key {
            Key::Char('r' | 'u') => {
                let (id, is_live) = (detail.id(), detail.is_live());
                self.ask_about(key, id, is_live)
            }
            other => {
                detail.walk(other);
                Step::Stay
            }
        }
    }

    /// Draws the whole screen.
    pub fn draw(&mut self, frame: &mut Frame) {
        let [head, page, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        if let Some(detail) = &mut self.detail {
            detail.draw(frame, page);
        } else if let Some(events) = &mut self.events {
            events.draw(frame, page, self.style);
        } else {
            self.overview.draw(frame, page, self.style);
        }
        frame.render_widget(self.foot(), foot);
        if let Some(prompt) = &self.prompt {
            prompt.draw(frame, page);
        } else if self.is_helping {
            help(frame, page);
        }
    }

    fn head(&self) -> Paragraph<'_> {
        match &self.fault {
            Some(fault) => Paragraph::new(format!("the database is away, trying again: {fault}"))
                .style(self.style.alarm()),
            None if self.stats().is_none() => Paragraph::new("looking…"),
            None => Paragraph::new(format!(
                "tidegate, every {}{}",
                humantime::format_duration(self.interval),
                self.place()
            ))
            .style(Style::dim()),
        }
    }

    /// Returns the name of the open page.
    fn place(&self) -> String {
        match (&self.detail, &self.events) {
            (Some(detail), _) => format!(" › event {}", detail.id()),
            (None, Some(events)) => format!(" › {}", events.title()),
            (None, None) => String::new(),
        }
    }

    fn foot(&self) -> Paragraph<'_> {
        match &self.said {
            Some((text, true)) => Paragraph::new(text.as_str()).style(self.style.alarm()),
            Some((text, false)) => Paragraph::new(text.as_str()).style(self.style.good()),
            None => Paragraph::new(self.keys()).style(Style::dim()),
        }
    }

    /// Returns the most important keys of the open page.
    fn keys(&self) -> &'static str {
        match (&self.detail, &self.events) {
            (Some(detail), _) if detail.is_live() => "↑↓ scroll  u requeue  q back  ? keys",
            (Some(_), _) => "↑↓ scroll  r replay  q back  ? keys",
            (None, Some(_)) => "↑↓ choose  ⏎ show  r replay  u requeue  q back  ? keys",
            (None, None) => "↑↓ choose  ⏎ events  d dead letters  p pause  q quit  ? keys",
        }
    }
}

/// The help text of all keys.
const KEYS: [&str; 11] = [
    "↑ ↓ j k         one line up or down",
    "PageUp PageDown a page up or down",
    "Home End g G    the first, the last line",
    "Enter           open: events of a kind, one event",
    "a l d           all, live, dead letters of a kind",
    "p               pause the kind, or resume it",
    "r               replay the event, which has ended",
    "u               requeue the event, which is live",
    "q Esc           back; on the first page: quit",
    "Ctrl-C          quit",
    "?               this page; any key closes it",
];

fn help(frame: &mut Frame, within: Rect) {
    let height = u16::try_from(KEYS.len())
        .unwrap_or(u16::MAX)
        .saturating_add(2);
    let area = centred(within, 54, height);
    let lines: Vec<Line<'_>> = KEYS.iter().map(|line| Line::from(*line)).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(" keys ")),
        area,
    );
}

/// Returns a box in the middle, at most as large as the screen.
fn centred(within: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(within.width), height.min(within.height));
    Rect {
        x: within.x + (within.width - width) / 2,
        y: within.y + (within.height - height) / 2,
        width,
        height,
    }
}

/// Returns the line that a key moves to, of `count` lines, with `height` lines on a page.
fn walked(from: usize, key: Key, count: usize, height: usize) -> usize {
    let last = count.saturating_sub(1);
    let page = height.max(1);
    match key {
        Key::Up | Key::Char('k') => from.saturating_sub(1),
        Key::Down | Key::Char('j') => from.saturating_add(1),
        Key::PageUp => from.saturating_sub(page),
        Key::PageDown => from.saturating_add(page),
        Key::First | Key::Char('g') => 0,
        Key::Last | Key::Char('G') => last,
        _ => from,
    }
    .min(last)
}

/// The number of events in one query.
pub const EVENTS: u32 = PAGE;
