//! The figures as a table for people and as JSON for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::growth;

/// All measurements of one allocator.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub thread_safe: bool,
    /// Nanoseconds per event, by trace, one value per round.
    #[serde(serialize_with = "medians")]
    cold: BTreeMap<String, Vec<f64>>,
    #[serde(serialize_with = "medians")]
    warm: BTreeMap<String, Vec<f64>>,
    /// Nanoseconds per pair, by number of live blocks.
    #[serde(serialize_with = "medians")]
    random_free: BTreeMap<usize, Vec<f64>>,
    /// Smallest pool as a multiple of the live peak, by trace.
    smallest: BTreeMap<String, Option<f64>>,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub traces: Vec<String>,
    pub rows: Vec<Row>,
    pub growth: Vec<growth::Row>,
}

impl Row {
    pub fn new(name: &'static str, thread_safe: bool) -> Self {
        let (cold, warm, random_free) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { name, thread_safe, cold, warm, random_free, smallest: BTreeMap::new() }
    }

    fn is_measured(&self) -> bool {
        !(self.warm.is_empty() && self.random_free.is_empty() && self.smallest.is_empty())
    }

    pub fn add_times(&mut self, trace: &str, cold: f64, warm: f64) {
        self.cold.entry(trace.to_owned()).or_default().push(cold);
        self.warm.entry(trace.to_owned()).or_default().push(warm);
    }

    pub fn add_random(&mut self, live: usize, nanoseconds: f64) {
        self.random_free.entry(live).or_default().push(nanoseconds);
    }

    pub fn add_space(&mut self, trace: &str, ratio: Option<f64>) {
        self.smallest.insert(trace.to_owned(), ratio);
    }
}

fn medians<K: Ord + Serialize + Clone, S: Serializer>(
    values: &BTreeMap<K, Vec<f64>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let medians: BTreeMap<K, f64> =
        values.iter().map(|(key, values)| (key.clone(), median(&mut values.clone()))).collect();
    medians.serialize(serializer)
}

/// The median; NaN for an empty list.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The geometric mean of the medians; NaN for an empty list.
fn geometric(values: &BTreeMap<String, Vec<f64>>) -> f64 {
    mean(values.values().map(|values| median(&mut values.clone())))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value.ln(), count + 1.0));
    (sum / count).exp()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.iter().any(Row::is_measured) {
            self.write_rows(f)?;
        }
        if !self.growth.is_empty() {
            self.write_growth(f)?;
        }
        Ok(())
    }
}

/// A figure, or a dash for none.
fn number(value: Option<f64>, digits: usize) -> String {
    match value {
        Some(value) if value.is_finite() => format!("{value:.digits$}"),
        _ => "–".to_owned(),
    }
}

impl Report {
    fn write_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<26} {:>6} {:>6}", "ns/event, ns/pair, pool/peak", "warm", "cold")?;
        for trace in &self.traces {
            write!(f, " {:>9}", &trace[..trace.len().min(9)])?;
        }
        writeln!(f, " {:>8} {:>8} {:>8} {:>7}", "free 1k", "free 10k", "free 1M", "pool")?;
        for row in &self.rows {
            let name = if row.thread_safe { format!("{} *", row.name) } else { row.name.to_owned() };
            let [warm, cold] = [&row.warm, &row.cold].map(|times| number(Some(geometric(times)), 1));
            write!(f, "{name:<28} {warm:>6} {cold:>6}")?;
            for trace in &self.traces {
                let warm = row.warm.get(trace).map(|values| median(&mut values.clone()));
                write!(f, " {:>9}", number(warm, 1))?;
            }
            for live in [1_000, 10_000, 1_000_000] {
                let pair = row.random_free.get(&live).map(|values| median(&mut values.clone()));
                write!(f, " {:>8}", number(pair, 1))?;
            }
            let all: Option<Vec<f64>> = row.smallest.values().copied().collect();
            let pool = all.filter(|all| !all.is_empty()).map(|all| mean(all.into_iter()));
            writeln!(f, " {:>7}", number(pool, 4))?;
        }
        writeln!(
            f,
            "* thread-safe. Times are medians; warm, cold and pool are geometric means over the traces."
        )
    }

    fn write_growth(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<42} {:>7}", "most reserved / live peak, growing", "mean")?;
        for trace in &self.traces {
            write!(f, " {:>9}", &trace[..trace.len().min(9)])?;
        }
        writeln!(f)?;
        for row in &self.growth {
            write!(f, "{:<42} {:>7}", row.name, number(Some(mean(row.reserved.values().copied())), 4))?;
            for trace in &self.traces {
                write!(f, " {:>9}", number(row.reserved.get(trace).copied(), 4))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
