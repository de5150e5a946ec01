//! The second page: the events of one kind, newest first, one of them selected. The end of the list loads more.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use serde_json::Value;

use super::style::Style;
use super::{Key, Wish, walked};
use crate::text;

/// The number of events in one query.
pub const PAGE: u32 = 200;

/// The most events that the list holds.
const MOST: usize = 10_000;

/// Which events of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    All,
    Live,
    Dead,
}

impl View {
    /// Returns the states of the filter's events. An empty list means all states.
    pub fn statuses(self) -> &'static [&'static str] {
        match self {
            Self::All => &[],
            Self::Live => &["PENDING", "PROCESSING"],
            Self::Dead => &["FAILED", "COMPLETED_WITH_ERRORS"],
        }
    }
}

pub struct Events {
    kind: String,
    view: View,
    /// `None` before the first answer.
    found: Option<Vec<Value>>,
    has_more: bool,
    pub is_loading: bool,
    chosen: Option<i64>,
    table: TableState,
    height: usize,
}

impl Events {
    pub fn new(kind: String, view: View) -> Self {
        Self {
            kind,
            view,
            found: None,
            has_more: false,
            is_loading: false,
            chosen: None,
            table: TableState::new(),
            height: 0,
        }
    }

    pub fn kind(&self) -> &str {
        &self.kind
    }

    pub fn is_of(&self, kind: &str, view: View) -> bool {
        self.kind == kind && self.view == view
    }

    pub fn title(&self) -> String {
        let kind = &self.kind;
        match self.view {
            View::All => kind.clone(),
            View::Live => format!("{kind}, live"),
            View::Dead => format!("{kind}, dead letters"),
        }
    }

    /// Requests the newest events, unless a request is under way or the person reads further down.
    pub fn refresh(&mut self) -> Option<Wish> {
        let reads_on = self
            .found
            .as_ref()
            .is_some_and(|all| all.len() > PAGE as usize);
        if self.is_loading || reads_on {
            return None;
        }
        Some(self.wish(None))
    }

    fn wish(&mut self, before: Option<i64>) -> Wish {
        self.is_loading = true;
        Wish::Events {
            kind: self.kind.clone(),
            view: self.view,
            before,
        }
    }

    /// Takes the answer: the first page, or the page that follows.
    pub fn fill(&mut self, before: Option<i64>, events: Vec<Value>) {
        self.is_loading = false;
        self.has_more = events.len() >= PAGE as usize;
        match (before, &mut self.found) {
            (Some(_), Some(all)) => all.extend(events),
            _ => self.found = Some(events),
        }
    }

    fn all(&self) -> &[Value] {
        self.found.as_deref().unwrap_or_default()
    }

    /// Returns the line of the selected event. It stays selected while other events appear before it.
    fn line(&self) -> usize {
        let chosen = self.chosen;
        let line = chosen.and_then(|id| self.all().iter().position(|event| event["id"] == id));
        line.unwrap_or(0)
    }

    /// Returns the selected event, and whether it is live.
    pub fn selected(&self) -> Option<(i64, bool)> {
        let event = self.all().get(self.line())?;
        Some((event["id"].as_i64()?, event["finished_at"].is_null()))
    }

    /// Moves through the list, and requests more events at its end.
    pub fn walk(&mut self, key: Key) -> Option<Wish> {
        let count = self.all().len();
        let line = walked(self.line(), key, count, self.height);
        self.chosen = self.all().get(line).and_then(|event| event["id"].as_i64());
        let is_at_end = line + 1 == count;
        if !is_at_end || !self.has_more || self.is_loading || count >= MOST {
            return None;
        }
        let last = self.all().last().and_then(|event| event["id"].as_i64())?;
        Some(self.wish(Some(last)))
    }

    pub fn draw(&mut self, frame: &mut Frame, area: Rect, style: Style) {
        let Some(events) = &self.found else {
            return frame.render_widget(Paragraph::new("looking…"), area);
        };
        if events.is_empty() {
            return frame.render_widget(Paragraph::new("there are no such events"), area);
        }
        self.height = usize::from(area.height.saturating_sub(1));
        let is_wide = area.width >= 80;
        let rows: Vec<Row<'_>> = events
            .iter()
            .map(|event| {
                let row = Row::new([
                    text::cell(&event["id"]),
                    status(event),
                    text::cell(&event["attempts"]),
                    created(event, is_wide),
                    text::cell(&event["group_key"]),
                    text::cell(&event["last_error"]).replace('\n', " "),
                ]);
                match event["status"].as_str() {
                    Some("FAILED") => row.style(style.alarm()),
                    _ => row,
                }
            })
            .collect();
        let widths = [
            Constraint::Length(9),
            Constraint::Length(11),
            Constraint::Length(3),
            Constraint::Length(if is_wide { 19 } else { 8 }),
            Constraint::Max(if is_wide { 14 } else { 8 }),
            Constraint::Fill(1),
        ];
        let header = ["id", "status", "att", "created", "group", "last error"];
        let table = Table::new(rows, widths)
            .header(Row::new(header).style(Style::heading()))
            .row_highlight_style(Style::chosen());
        self.table.select(Some(self.line()));
        frame.render_stateful_widget(table, area, &mut self.table);
    }
}

/// Returns the status, shortened to the width of its column.
fn status(event: &Value) -> String {
    match event["status"].as_str() {
        Some("COMPLETED_WITH_ERRORS") => "WITH_ERRORS".to_owned(),
        other => other.unwrap_or_default().to_owned(),
    }
}

/// Formats the time of the publish. In a narrow column, only the time of day.
fn created(event: &Value, is_wide: bool) -> String {
    let time = text::instant(&event["created_at"]);
    if is_wide {
        return time;
    }
    time.split(' ').next_back().unwrap_or_default().to_owned()
}
