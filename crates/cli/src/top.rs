//! `highwater top`: what a run that is being recorded has in use now.

mod screen;
mod view;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use highwater_tracking::{Follower, HwmError, RecordingLimits};

use crate::{exit, input_file};
use screen::{Key, Screen};
use view::{Order, View};

/// The arguments of `highwater top`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopArguments {
    /// A recording that is being written, as by an example with --record; one that has ended will do too
    #[arg(value_name = "RUN.hwm")]
    run: PathBuf,

    /// Look at the file so often, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 250, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    every: u64,

    /// Print what there is now and leave, as when the output is no terminal
    #[arg(long)]
    once: bool,
}

/// How many holders stand in what is printed once.
const PRINTED_HOLDERS: usize = 20;

/// The width of what is printed once.
const PRINTED_WIDTH: usize = 100;

pub(crate) fn run(arguments: &TopArguments) -> io::Result<ExitCode> {
    let mut followed = match Followed::open(&arguments.run) {
        Ok(followed) => followed,
        Err(error) => return complain(&error),
    };
    if let Err(error) = followed.poll() {
        return complain(&error);
    }
    if arguments.once || !io::stdout().is_terminal() {
        let view = View::new(&arguments.run, &followed.follower, Order::Live, None);
        let mut stdout = io::stdout().lock();
        for line in view.lines(PRINTED_WIDTH, PRINTED_HOLDERS) {
            writeln!(stdout, "{line}")?;
        }
        stdout.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    match watch(arguments, &mut followed)? {
        // Said once the terminal is as it was.
        Some(error) => complain(&error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Shows the run until somebody quits, or until the file cannot be followed any more.
fn watch(arguments: &TopArguments, followed: &mut Followed) -> io::Result<Option<Problem>> {
    let mut screen = Screen::open()?;
    let mut order = Order::Live;
    let (mut before, mut rate) = ((Instant::now(), followed.follower.events()), None);
    loop {
        let (columns, rows) = screen.size()?;
        let view = View::new(&arguments.run, &followed.follower, order, rate);
        screen.show(&view.fitting(columns, rows))?;
        match screen.wait(Duration::from_millis(arguments.every))? {
            Key::Quit => return Ok(None),
            Key::Order => order = order.next(),
            Key::Redraw => {}
            Key::None => {
                if let Err(problem) = followed.poll() {
                    return Ok(Some(problem));
                }
                let (now, events) = (Instant::now(), followed.follower.events());
                let passed = now.duration_since(before.0).as_secs_f64();
                if passed >= 1.0 {
                    rate = Some(events.saturating_sub(before.1) as f64 / passed);
                    before = (now, events);
                }
            }
        }
    }
}

/// A file, and what was read of it.
#[derive(Debug)]
struct Followed {
    path: PathBuf,
    follower: Follower<File>,
}

/// Why a file cannot be followed.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("standard input cannot be followed: name a file, or use `highwater report -`")]
    Standard,
    #[error("{}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Recording { path: PathBuf, error: HwmError },
}

impl Followed {
    fn open(path: &Path) -> Result<Self, Problem> {
        if path.as_os_str() == input_file::STANDARD {
            return Err(Problem::Standard);
        }
        let file =
            input_file::open_file(path).map_err(|error| Problem::Open { path: path.to_owned(), error })?;
        Ok(Self { path: path.to_owned(), follower: Follower::new(file, RecordingLimits::default()) })
    }

    /// Reads what the file has grown by. One that has become shorter was begun again.
    fn poll(&mut self) -> Result<(), Problem> {
        if self.follower.reader().metadata().is_ok_and(|file| file.len() < self.follower.offset()) {
            *self = Self::open(&self.path)?;
        }
        let polled = self.follower.poll();
        polled.map(drop).map_err(|error| Problem::Recording { path: self.path.clone(), error })
    }
}

fn complain(problem: &Problem) -> io::Result<ExitCode> {
    writeln!(io::stderr(), "highwater: {problem}")?;
    Ok(ExitCode::from(exit::BAD_FILE))
}
