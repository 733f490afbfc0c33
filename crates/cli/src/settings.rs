//! `highwater settings`: lists all settings with their values, and the origin of each value.

use std::fmt;

use bfc_core::setting::{Setting, SettingKind, SettingScope};
use bfc_core::{DeviceScope, Environment, OptionError, PoolOptions, printable};
use clap::Args;
use highwater_tensor::settings;
use serde::Serialize;

use crate::error::CommandError;
use crate::files::output::print;

/// The arguments of `highwater settings`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SettingsArguments {
    /// Show the values in a program with this option, such as limit=2GiB; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = pool_option)]
    pool_option: Vec<PoolOptions>,

    /// Write JSON
    #[arg(long)]
    json: bool,
}

fn pool_option(pair: &str) -> Result<PoolOptions, OptionError> {
    let mut options = PoolOptions::default();
    options.set_pair(pair)?;
    Ok(options)
}

/// Prints the settings of this process and of the options.
pub(crate) fn run(arguments: &SettingsArguments) -> Result<(), CommandError> {
    let options = arguments.pool_option.iter().fold(PoolOptions::default(), |all, later| later.or(all));
    let usage = |error: bfc_core::EnvironmentError| CommandError::Usage(error.to_string());
    let environment = Environment::read().map_err(usage)?;
    let all = settings();
    environment.unknown(&all).iter().for_each(|unknown| eprintln!("warning: {unknown}"));
    let mut rows = Vec::new();
    for setting in &all {
        rows.extend(values(setting, &environment, &options).map_err(usage)?);
    }
    // A stable sort: settings of one scope keep their order.
    rows.sort_by_key(|row| row.order);
    let table = Table { settings: rows };
    Ok(print(&table, arguments.json, || table.to_string())?)
}

/// All settings.
#[derive(Debug, Serialize)]
struct Table {
    settings: Vec<Row>,
}

/// A setting with its value. A setting of pools has a further row for each variable with a suffix.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    scope: &'static str,
    /// The devices of a variable with a suffix.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<String>,
    value: String,
    origin: Origin,
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    option: Option<&'static str>,
    values: String,
    default: &'static str,
    help: &'static str,
    #[serde(skip)]
    order: u8,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Origin {
    Default,
    Environment,
    Option,
}

impl Origin {
    const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Environment => "environment",
            Self::Option => "option",
        }
    }
}

/// Returns the row of a setting, and one for each variable with a suffix.
fn values(
    setting: &Setting,
    environment: &Environment,
    options: &PoolOptions,
) -> Result<Vec<Row>, bfc_core::EnvironmentError> {
    let row = |variable: Option<String>, devices, value, origin| Row {
        name: setting.name,
        scope: setting.scope.name(),
        devices,
        value,
        origin,
        variable,
        option: setting.option,
        values: setting.expected(),
        default: setting.default,
        help: setting.help,
        order: match setting.scope {
            SettingScope::Device => 0,
            SettingScope::Pool => 1,
            SettingScope::Run => 2,
            SettingScope::Process => 3,
            _ => 4,
        },
    };
    let name = setting.variable.map(str::to_owned);
    let chosen = (setting.scope == SettingScope::Pool).then(|| options.text(setting.name)).flatten();
    let set = match setting.kind {
        // Not checked: a path need not be Unicode text.
        SettingKind::Path => setting.variable.and_then(|name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(|path| path.to_string_lossy().into_owned())
        }),
        _ => environment.value(setting)?.map(|text| in_units(setting, text)),
    };
    let whole = match (chosen, set) {
        (Some(value), _) => row(name, None, value, Origin::Option),
        (None, Some(value)) => row(name, None, value, Origin::Environment),
        (None, None) => row(name, None, in_units(setting, setting.default), Origin::Default),
    };
    let mut rows = vec![whole];
    for (variable, scope) in environment.variables_of(setting) {
        let devices = match scope {
            DeviceScope::One(device) => device.to_string(),
            DeviceScope::Kind(kind) => kind.name().to_owned(),
            DeviceScope::All => continue,
        };
        let value = environment.settings().chosen(scope).text(setting.name).unwrap_or_default();
        rows.push(row(Some(variable.to_owned()), Some(devices), value, Origin::Environment));
    }
    Ok(rows)
}

/// Returns the value of a setting of pools in human units; other texts are unchanged.
fn in_units(setting: &Setting, text: &str) -> String {
    let mut options = PoolOptions::default();
    match options.set(setting.name, text) {
        Ok(()) => options.text(setting.name).unwrap_or_default(),
        Err(_) => text.to_owned(),
    }
}

impl fmt::Display for Table {
    /// Aligned columns; the settings of each scope below its name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = |row: &Row| match &row.devices {
            Some(devices) => format!("  {} of {devices}", row.name),
            None => format!("  {}", row.name),
        };
        let variable = |row: &Row| row.variable.clone().unwrap_or_default();
        let width = |cell: &dyn Fn(&Row) -> usize, heading: &str| {
            self.settings.iter().map(cell).max().unwrap_or(0).max(heading.len())
        };
        let first = width(&|row| title(row).chars().count(), "setting");
        let second = width(&|row| variable(row).chars().count(), "variable");
        let third = width(&|row| row.origin.name().len(), "origin");
        writeln!(f, "{:first$}  {:second$}  {:third$}  value", "setting", "variable", "origin")?;
        let mut scope = "";
        for row in &self.settings {
            if row.scope != scope {
                scope = row.scope;
                writeln!(f, "{scope}")?;
            }
            let (title, variable, origin) = (title(row), variable(row), row.origin.name());
            let value = printable(&row.value);
            writeln!(f, "{title:first$}  {variable:second$}  {origin:third$}  {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(variables: &[(&str, &str)], options: &[&str]) -> Vec<(String, String, Origin)> {
        let environment = Environment::from_vars(variables.iter().copied()).unwrap();
        let mut chosen = PoolOptions::default();
        options.iter().for_each(|pair| chosen.set_pair(pair).unwrap());
        let all = settings();
        let all = all.iter().flat_map(|setting| values(setting, &environment, &chosen).unwrap());
        all.map(|row| (row.variable.unwrap(), row.value, row.origin)).collect()
    }

    #[test]
    fn every_value_has_an_origin_and_a_unit() {
        let variables = [
            ("HIGHWATER_POOL_LIMIT", "4096MiB"),
            ("HIGHWATER_POOL_LIMIT_CUDA_1", "50%"),
            ("HIGHWATER_RETRY_MS", "250"),
            ("HIGHWATER_THREADS", "3"),
        ];
        let found = rows(&variables, &["retry_ms=0", "growth=fixed:64MiB"]);
        for (variable, value, origin) in [
            ("HIGHWATER_POOL_LIMIT", "4.00 GiB", Origin::Environment),
            ("HIGHWATER_POOL_LIMIT_CUDA_1", "50 %", Origin::Environment),
            ("HIGHWATER_RETRY_MS", "0 ms", Origin::Option),
            ("HIGHWATER_GROWTH", "fixed:64.00 MiB", Origin::Option),
            ("HIGHWATER_FIRST_REGION", "2.00 MiB", Origin::Default),
            ("HIGHWATER_THREADS", "3", Origin::Environment),
            ("HIGHWATER_TF32", "off", Origin::Default),
        ] {
            let row = (variable.to_owned(), value.to_owned(), origin);
            assert!(found.contains(&row), "{row:?} in {found:?}");
        }
    }
}
