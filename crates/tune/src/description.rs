//! What a file of results says besides its figures.

use compare::result::{FORMAT, Property, ResultFile, System};

/// How a measurement was made. All of it is text for people, except the name and the scenario.
#[derive(Clone, Debug)]
pub struct Description {
    /// The knob, or the parameter.
    pub subject: String,
    /// The name of the scenario.
    pub scenario: String,
    /// Singular of what is counted.
    pub unit: String,
    /// The command line that repeats it.
    pub command: String,
    /// When it began (RFC 3339, UTC).
    pub started: String,
    /// How long it took.
    pub seconds: f64,
    /// The machine.
    pub machine: Vec<Property>,
    /// The command line of the load.
    pub load_command: String,
    /// The configuration of the server, before anything is varied.
    pub configuration: String,
    /// What a reader must know in order to believe the figures.
    pub notes: Vec<String>,
}

impl Description {
    /// A file without figures.
    pub(crate) fn file(&self, command: &str, title: String, answer: String) -> ResultFile {
        ResultFile {
            format: FORMAT,
            name: format!("tune-{command}-{}-{}", self.subject, self.scenario),
            title,
            question: None,
            answer: Some(answer),
            command: self.command.clone(),
            started: self.started.clone(),
            seconds: Some(self.seconds),
            is_trial: false,
            reduced: None,
            machine: self.machine.clone(),
            unit: self.unit.clone(),
            case_name: Some(self.subject.clone()),
            systems: Vec::new(),
            cases: Vec::new(),
            comparisons: Vec::new(),
            checks: Vec::new(),
            charts: Vec::new(),
            tables: Vec::new(),
            notes: self.notes.clone(),
        }
    }

    /// A system, with the load and the configuration.
    pub(crate) fn system(&self, name: &str) -> System {
        System {
            name: name.to_owned(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            commands: vec![self.load_command.clone()],
            configuration: Some(self.configuration.clone()),
        }
    }
}

#[cfg(test)]
impl Description {
    pub(crate) fn for_tests(subject: &str, scenario: &str) -> Description {
        Description {
            subject: subject.to_owned(),
            scenario: scenario.to_owned(),
            unit: "message".to_owned(),
            command: format!("mailrace tune measure {subject} --scenario {scenario}"),
            started: "2026-11-23T12:00:00Z".to_owned(),
            seconds: 72.0,
            machine: Vec::new(),
            load_command: "mailrace bench smtp".to_owned(),
            configuration: "threads = 1\n".to_owned(),
            notes: Vec::new(),
        }
    }
}
