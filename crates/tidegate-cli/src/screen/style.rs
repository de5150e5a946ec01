//! Owns colours and weights. Without colours, the weight alone shows the difference.

use ratatui::style::{Color, Modifier, Style as Drawn};

/// Whether colours are used.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub is_coloured: bool,
}

impl Style {
    fn of(self, color: Color) -> Drawn {
        if self.is_coloured {
            Drawn::new().fg(color)
        } else {
            Drawn::new()
        }
    }

    /// For a problem that needs an operator.
    pub fn alarm(self) -> Drawn {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// For a problem that will need an operator.
    pub fn warning(self) -> Drawn {
        self.of(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// For a success.
    pub fn good(self) -> Drawn {
        self.of(Color::Green)
    }

    /// For the graph of the backlog.
    pub fn depth(self) -> Drawn {
        self.of(Color::Yellow)
    }

    /// For the headings of a table.
    pub fn heading() -> Drawn {
        Drawn::new().add_modifier(Modifier::BOLD)
    }

    /// For the selected line.
    pub fn chosen() -> Drawn {
        Drawn::new().add_modifier(Modifier::REVERSED)
    }

    /// For unimportant text.
    pub fn dim() -> Drawn {
        Drawn::new().add_modifier(Modifier::DIM)
    }
}
