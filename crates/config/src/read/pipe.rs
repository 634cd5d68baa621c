//! `[transport.NAME]` of type pipe: a program that takes messages.

use delivery::pipe::{AddedFields, ProgramLineEnds};
use queue::ConcurrencyPolicy;

use super::fill_path;
use crate::PipeTransportSettings;
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};

/// A field that is put before the message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    FromLine,
    ReturnPath,
    OriginalTo,
    DeliveredTo,
}

const FIELD: ValueKind<Field> = ValueKind {
    expected: "\"From\", \"Return-Path\", \"X-Original-To\" or \"Delivered-To\"",
    parse: |value| match value.as_str()? {
        "From" => Some(Field::FromLine),
        "Return-Path" => Some(Field::ReturnPath),
        "X-Original-To" => Some(Field::OriginalTo),
        "Delivered-To" => Some(Field::DeliveredTo),
        _ => None,
    },
};
const LINE_ENDS: Keywords<ProgramLineEnds> =
    Keywords { supported: &[("lf", ProgramLineEnds::Lf), ("crlf", ProgramLineEnds::Crlf)], planned: &[] };

pub(super) fn pipe(mut section: Section<'_, '_>, data_dir: &std::path::Path) -> PipeTransportSettings {
    let defaults = PipeTransportSettings::new(command(&mut section));
    let directory = section.take_spanned("directory", &value_kind::TEXT);
    let directory = directory.and_then(|template| fill_path(&section, "directory", &template, data_dir));
    let recipients = section.take_or("recipients_max", &value_kind::PIPE_RECIPIENTS, 1);
    let programs = section.take_or("programs", &ValueKind::COUNT, defaults.limits.concurrency.max);
    let mut limits = defaults.limits;
    limits.recipients_per_attempt_max = Some(recipients);
    limits.concurrency = ConcurrencyPolicy { start: programs, max: programs, ..limits.concurrency };
    limits.rate = section.take("rate", &value_kind::RATE);
    PipeTransportSettings {
        user: section.take("user", &value_kind::TEXT).map(Into::into),
        directory: directory.unwrap_or(defaults.directory),
        null_sender: section.take("null_sender", &NULL_SENDER).map_or(defaults.null_sender, Into::into),
        delimiter: section.take_or("delimiter", &value_kind::DELIMITER, defaults.delimiter),
        fields: fields(&mut section, recipients),
        line_ends: section.choice("line_ends", &LINE_ENDS).unwrap_or_default(),
        time_max: section.take_or("timeout", &value_kind::DURATION, defaults.time_max),
        output_octets_max: section.take_or("output_max", &value_kind::OUTPUT_SIZE, defaults.output_octets_max),
        limits,
        command: defaults.command,
    }
}

const NULL_SENDER: ValueKind<String> = ValueKind {
    expected: "a text without control characters",
    parse: |value| value.as_str().filter(|text| !text.contains(char::is_control)).map(str::to_owned),
};

/// The program and its arguments. It is not searched for, so its path is absolute.
fn command(section: &mut Section<'_, '_>) -> Vec<delivery::pipe::ArgumentTemplate> {
    section.report_if_missing("command", "a list: the path of the program, then its arguments");
    let place = section.span_of("command");
    let Some(command) = section.list("command", &value_kind::ARGUMENT) else { return Vec::new() };
    if !command.first().is_some_and(|program| program.get_ref().to_string().starts_with('/')) {
        let label = "expected the absolute path of the program as the first element; no shell takes part".to_owned();
        section.report(place, "command", "has an invalid value", label);
    }
    super::unspanned(command)
}

/// The fields before the message. `Delivered-To` names one recipient.
fn fields(section: &mut Section<'_, '_>, recipients_max: usize) -> AddedFields {
    let place = section.span_of("fields");
    let fields = section.list("fields", &FIELD).map_or(Vec::new(), super::unspanned);
    let has = |field: Field| fields.contains(&field);
    let of_one = has(Field::DeliveredTo) || has(Field::OriginalTo);
    if of_one && recipients_max > 1 {
        let label = "expected neither \"Delivered-To\" nor \"X-Original-To\" with `recipients_max` above 1".to_owned();
        section.report(place, "fields", "has an invalid value", label);
    }
    AddedFields {
        from_line: has(Field::FromLine),
        return_path: has(Field::ReturnPath),
        original_to: has(Field::OriginalTo),
        delivered_to: has(Field::DeliveredTo),
    }
}
