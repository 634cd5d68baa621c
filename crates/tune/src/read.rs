//! Reads the values of a knob: from its file, or by the reader that the table names.

mod around;
mod storage;
mod system;

use crate::disks::is_rotational;
use crate::host::Host;
use crate::knob::{ApplyTarget, Knob, Reader};
use crate::process;
use crate::settings::ServerSettings;
use crate::survey::{Observed, Reading, Survey};
use crate::value::Value;

/// The values of a knob on this host. Empty if there is nothing that it applies to.
pub(crate) fn readings(knob: &Knob, survey: &Survey<'_>) -> Vec<Reading> {
    match knob.read {
        None => files(knob, survey),
        Some(reader) => read(reader, knob, survey),
    }
}

/// The values in the knob's file, or in that of each disk of the spool.
fn files(knob: &Knob, survey: &Survey<'_>) -> Vec<Reading> {
    let Some(paths) = paths(knob, survey) else { return vec![Reading::single(Observed::Unknown)] };
    paths.into_iter().map(|(disk, path)| Reading::of(disk, file(knob, survey, &path))).collect()
}

/// The disk (none: empty) and the file of each value; None if the disks are not known.
fn paths<'a>(knob: &Knob, survey: &'a Survey<'_>) -> Option<Vec<(&'a str, String)>> {
    let Some(place) = DISK_PLACES.iter().find(|place| knob.linux.contains(place.name)) else {
        return Some(vec![("", knob.linux.clone())]);
    };
    let disks = Some(survey.spool_disks()).filter(|disks| !disks.is_empty())?;
    let applies = |disk: &&str| place.rotates.is_none() || place.rotates == is_rotational(survey.host, disk);
    Some(disks.into_iter().filter(applies).map(|disk| (disk, knob.linux.replace(place.name, disk))).collect())
}

/// The files of the kernel that hold the knob's value and that a measurement may change; empty if there are none.
pub(crate) fn knob_files(knob: &Knob, host: &Host, settings: &ServerSettings) -> Vec<String> {
    let survey = Survey::new(host, settings);
    let takes_values = matches!(knob.apply, Some(ApplyTarget::Sysctl | ApplyTarget::Disk | ApplyTarget::Sysfs));
    let files = paths(knob, &survey).filter(|_| takes_values).unwrap_or_default().into_iter().map(|(_, path)| path);
    files.filter(|path| host.read(path).is_some()).collect()
}

/// A placeholder for a disk of the spool.
struct DiskPlace {
    name: &'static str,
    /// Which disks it stands for; None: all.
    rotates: Option<bool>,
}

const DISK_PLACES: [DiskPlace; 3] = [
    DiskPlace { name: "{disk}", rotates: None },
    DiskPlace { name: "{ssd}", rotates: Some(false) },
    DiskPlace { name: "{hdd}", rotates: Some(true) },
];

fn file(knob: &Knob, survey: &Survey<'_>, path: &str) -> Observed {
    match survey.host.read(path) {
        Some(text) => Observed::known(Value::parse(&text, knob.kind, knob.field)),
        None if knob.optional => Observed::Absent,
        None => Observed::Unknown,
    }
}

fn read(reader: Reader, knob: &Knob, survey: &Survey<'_>) -> Vec<Reading> {
    let (host, settings, server) = (survey.host, survey.settings, survey.server.as_ref());
    let single = |observed| vec![Reading::single(observed)];
    let number = |number: u64| single(Observed::number(Some(number)));
    match reader {
        Reader::OpenFiles => single(Observed::number(process::open_files(host, server))),
        Reader::PortCount => single(Observed::number(system::port_count(host))),
        Reader::MountAtime => storage::each_mount(survey, storage::access_times),
        Reader::MountSync => storage::each_mount(survey, storage::synchronous),
        Reader::MountDiscard => storage::each_mount(survey, storage::discard),
        Reader::MountCommit => storage::each_mount(survey, storage::commit_interval),
        Reader::MountData => storage::each_mount(survey, storage::data_mode),
        Reader::MountBarrier => storage::each_mount(survey, storage::barrier),
        Reader::FileSystem => storage::each_mount(survey, storage::file_system),
        Reader::Journal => storage::journals(survey),
        Reader::FolderFlags => storage::folder_flags(survey),
        Reader::FreeInodes => storage::free_inodes(survey),
        Reader::SharedDisk => single(storage::shared_disk(survey)),
        Reader::LanesOnOneDisk => single(storage::lanes_on_one_disk(survey)),
        Reader::CgroupMemory => single(Observed::number(system::cgroup_memory(host, server))),
        Reader::CgroupProcessors => single(Observed::number(system::cgroup_processors(host, server))),
        Reader::PressureEnabled => single(Observed::text(system::pressure_enabled(host))),
        Reader::StalledPercent => single(system::stalled_percent(host, &knob.linux)),
        Reader::WaitingPercent => single(system::waiting_percent(host, &knob.linux)),
        Reader::Governor => single(system::governor(host)),
        Reader::StealPercent => single(Observed::number(system::steal_percent(host))),
        Reader::Resolver => single(around::name_server_addresses(host, settings)),
        Reader::ResolverTime => single(around::name_server_time(host)),
        Reader::SyslogSync => single(around::syslog_sync(host)),
        Reader::SlapdIndex => single(around::slapd_index(host, settings)),
        Reader::SlapdLoglevel => single(around::slapd_loglevel(host, settings)),
        Reader::SlapdMaxsize => single(around::slapd_maxsize(host, settings)),
        Reader::Threads => number(settings.threads),
        Reader::Sessions => number(settings.sessions),
        Reader::BodyMemory => number(settings.body_memory),
        Reader::SpareSegments => number(settings.spare_segments),
        Reader::TableBatch => named(&settings.table_batch),
        Reader::MaildirConcurrency => named(&settings.maildir_concurrency),
        Reader::QueueConcurrency => named(&settings.queue_concurrency),
        Reader::Durability => {
            single(Observed::text(Some(if settings.syncs_each_commit { "commit" } else { "relaxed" })))
        }
    }
}

fn named(numbers: &[(String, u64)]) -> Vec<Reading> {
    numbers.iter().map(|(name, number)| Reading::of(name, Observed::number(Some(*number)))).collect()
}
