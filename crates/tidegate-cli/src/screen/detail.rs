//! The third page: everything about one event, as `show` prints it.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use serde_json::Value;

use super::{Key, walked};

/// The longest text. A payload may have a megabyte, which is too long to read here.
const MOST_BYTES: usize = 64 * 1024;

pub struct Detail {
    event: Value,
    text: String,
    /// The text, wrapped to this width.
    wrapped: (u16, Vec<String>),
    /// The first visible line.
    top: usize,
    height: usize,
}

impl Detail {
    pub fn new(event: Value, text: &str) -> Self {
        let mut shown: String = text.to_owned();
        if shown.len() > MOST_BYTES {
            shown.truncate(shown.floor_char_boundary(MOST_BYTES));
            shown.push_str("\n… `tidegate show` tells the rest");
        }
        Self {
            event,
            text: shown,
            wrapped: (0, Vec::new()),
            top: 0,
            height: 0,
        }
    }

    pub fn id(&self) -> i64 {
        self.event["id"].as_i64().unwrap_or_default()
    }

    pub fn is_live(&self) -> bool {
        self.event["in"] == "event_queue"
    }

    pub fn walk(&mut self, key: Key) {
        // The last page is a full page.
        let tops = (self.wrapped.1.len() + 1).saturating_sub(self.height);
        self.top = walked(self.top, key, tops, self.height);
    }

    pub fn draw(&mut self, frame: &mut Frame, area: Rect) {
        if self.wrapped.0 != area.width {
            self.wrapped = (area.width, wrapped(&self.text, usize::from(area.width)));
        }
        self.height = usize::from(area.height);
        let lines = &self.wrapped.1;
        self.top = self.top.min(lines.len().saturating_sub(self.height));
        let shown = lines.iter().skip(self.top).take(self.height);
        let shown: Vec<Line<'_>> = shown.map(|line| Line::from(line.as_str())).collect();
        frame.render_widget(Paragraph::new(shown), area);
    }
}

/// Cuts each line at the width of the terminal.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    for line in text.lines() {
        let (mut part, mut taken) = (String::new(), 0);
        for c in line.chars() {
            let wide = Span::raw(c.encode_utf8(&mut [0; 4]) as &str).width();
            if taken + wide > width {
                lines.push(std::mem::take(&mut part));
                taken = 0;
            }
            part.push(c);
            taken += wide;
        }
        lines.push(part);
    }
    lines
}
