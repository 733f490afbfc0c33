//! The settings that all ranks must share in each step: frozen parameters, element types, and options of the optimizer.
//!
//! A hash of them travels with each message before a common operation. The settings may change between steps, for example
//! by a schedule, if they change on all ranks.

use std::sync::{Arc, PoisonError};

use highwater_tensor::{DType, Parameter};

use super::shared::Shared;
use crate::agree::{AgreedValue, Fingerprint, Hash};

/// The options of the optimizer, and the progress of its training.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) options: Vec<(String, String)>,
    pub(super) steps: u64,
    /// The scale of the last step's gradients, if a loss scaler divided them.
    pub(super) scale: Option<f64>,
}

/// The part of a parameter that may change.
type State = (bool, DType);

fn state((_, parameter): &(String, Parameter)) -> State {
    (parameter.is_frozen(), parameter.value().dtype())
}

impl Shared {
    /// Changes the settings.
    pub(super) fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(Arc::make_mut(&mut self.settings.lock().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Returns the settings of this rank at this time.
    pub(super) fn fingerprint(self: &Arc<Self>) -> Fingerprint {
        let settings = Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner));
        let states: Vec<State> = self.parameters.iter().map(state).collect();
        let bucketing = {
            let bucketing = self.bucketing();
            [
                ("bucket bytes".to_owned(), bucketing.bucket_bytes.to_string()),
                ("exchange".to_owned(), bucketing.exchange.name().to_owned()),
                ("reduce".to_owned(), bucketing.reduce.name().to_owned()),
            ]
        };
        let mut hash = Hash::new();
        for ((path, _), (is_frozen, dtype)) in self.parameters.iter().zip(&states) {
            hash = hash.add(path.as_bytes()).add(&[0, u8::from(*is_frozen)]).add(dtype.name().as_bytes());
        }
        for (name, value) in settings.options.iter().chain(&bucketing) {
            hash = hash.add(name.as_bytes()).add(&[0]).add(value.as_bytes()).add(&[0]);
        }
        let hash = hash.add(self.shard.name().as_bytes()).add(&settings.steps.to_le_bytes());
        let hash = settings.scale.map_or(hash, |scale| hash.add(&scale.to_le_bytes()));
        let shared = Arc::clone(self);
        Fingerprint::new(hash.get(), move || shared.entries(&states, &settings, &bucketing))
    }

    fn entries(
        &self,
        states: &[State],
        settings: &Settings,
        bucketing: &[(String, String)],
    ) -> Vec<AgreedValue> {
        let parameter =
            |((path, parameter), (is_frozen, dtype)): (&(String, Parameter), &State)| AgreedValue {
                name: path.clone(),
                shape: parameter.value().dims().to_vec(),
                dtype: Some(*dtype),
                options: if *is_frozen { "frozen".into() } else { String::new() },
            };
        let option = |(name, value): &(String, String)| AgreedValue {
            name: name.clone(),
            shape: Vec::new(),
            dtype: None,
            options: value.clone(),
        };
        let fixed = [
            ("shard".to_owned(), self.shard.name().to_owned()),
            ("steps".to_owned(), settings.steps.to_string()),
        ];
        let scale = settings.scale.map(|scale| ("loss scale".to_owned(), scale.to_string()));
        let options = settings.options.iter().chain(bucketing).chain(&fixed).chain(&scale).map(option);
        self.parameters.iter().zip(states).map(parameter).chain(options).collect()
    }
}
