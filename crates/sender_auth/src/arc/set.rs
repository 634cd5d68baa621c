//! The sets of a chain: three fields each (RFC 8617 section 4.1), and the structure that they must
//! have (section 5.2, steps 1 to 3).

use crate::canonical_form::CanonicalForm;
use crate::dkim::signature::{MessageSignature, SealSignature, SignatureKind};
use crate::message_header::MessageHeader;
use crate::tag_list::{TagList, is_white_space};

use super::SETS_MAX;

const RESULTS: &[u8] = b"arc-authentication-results";
const MESSAGE_SIGNATURE: &[u8] = b"arc-message-signature";
const SEAL: &[u8] = b"arc-seal";

/// What one host added.
#[derive(Clone, Debug)]
pub(crate) struct ArcSet {
    /// The numbers of its fields.
    pub(crate) results_field: usize,
    pub(crate) signature_field: usize,
    pub(crate) seal_field: usize,
    /// Read for the newest set only: nothing else is verified with it.
    pub(crate) signature: Option<MessageSignature>,
    pub(crate) seal: SealSignature,
}

/// The fields of one instance.
#[derive(Clone, Copy, Default)]
struct FoundSet {
    results: Option<usize>,
    signature: Option<usize>,
    seal: Option<usize>,
}

/// The sets of a message, the oldest first; empty if there are none. `now` is in seconds since 1970.
///
/// # Errors
///
/// They are no valid chain; the reason.
pub(crate) fn find_chain(header: &MessageHeader, now: u64) -> Result<Vec<ArcSet>, &'static str> {
    let found = find_sets(header)?;
    let read = |(number, set): (usize, &FoundSet)| read_set(header, set, number + 1);
    let mut sets: Vec<ArcSet> = found.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    if let Some(newest) = sets.last_mut() {
        newest.signature = Some(read_signature(header.field(newest.signature_field).value, now)?);
    }
    Ok(sets)
}

fn find_sets(header: &MessageHeader) -> Result<Vec<FoundSet>, &'static str> {
    let mut sets = [FoundSet::default(); SETS_MAX];
    let mut count = 0;
    for (number, field) in header.fields() {
        let part: fn(&mut FoundSet) -> &mut Option<usize> = match field.name.len() {
            _ if field.is_named(RESULTS) => |set| &mut set.results,
            _ if field.is_named(MESSAGE_SIGNATURE) => |set| &mut set.signature,
            _ if field.is_named(SEAL) => |set| &mut set.seal,
            _ => continue,
        };
        let instance = instance(field.value).ok_or("a field without a valid instance")?;
        if part(&mut sets[instance - 1]).replace(number).is_some() {
            return Err("a field twice in one set");
        }
        count = count.max(instance);
    }
    Ok(sets[..count].to_vec())
}

/// `i=`, which comes first in Authentication-Results and anywhere in the others.
fn instance(value: &[u8]) -> Option<usize> {
    let named = |part: &[u8]| {
        let (name, number) = std::str::from_utf8(part).ok()?.split_once('=')?;
        let number = number.trim_matches(is_white_space);
        let is_number = name.trim_matches(is_white_space) == "i" && number.bytes().all(|digit| digit.is_ascii_digit());
        number.parse::<usize>().ok().filter(|number| is_number && (1..=SETS_MAX).contains(number))
    };
    value.split(|octet| *octet == b';').find_map(named)
}

/// A set without the signature over the message.
fn read_set(header: &MessageHeader, set: &FoundSet, instance: usize) -> Result<ArcSet, &'static str> {
    let FoundSet { results: Some(results_field), signature: Some(signature_field), seal: Some(seal_field) } = *set
    else {
        return Err("a set is not complete");
    };
    let tags = TagList::parse(header.field(seal_field).value).map_err(|_| "a seal cannot be read")?;
    match tags.value("cv") {
        Some("none") if instance == 1 => {}
        Some("pass") if instance > 1 => {}
        Some("fail") => return Err("the chain had failed before"),
        _ => return Err("a seal with the wrong chain status"),
    }
    // RFC 8617 section 4.1.3.
    if tags.value("h").is_some() {
        return Err("a seal with h=");
    }
    let seal = SealSignature::read(&tags).map_err(|rejection| rejection.reason)?;
    Ok(ArcSet { results_field, signature_field, seal_field, signature: None, seal })
}

/// RFC 8617 section 4.1.2: seals are not signed, and the rest is as in DKIM, times included.
fn read_signature(value: &[u8], now: u64) -> Result<MessageSignature, &'static str> {
    let (_, signature) = MessageSignature::parse(value, SignatureKind::ArcMessage);
    let signature = signature.and_then(|signature| signature.check_times(now).map(|()| signature));
    let signature = signature.map_err(|rejection| rejection.reason)?;
    match signature.fields.iter().any(|field| field.as_bytes() == SEAL) {
        true => Err("a signature over seals"),
        false => Ok(signature),
    }
}

impl ArcSet {
    /// Appends the fields that its own seal covers, without the seal.
    pub(super) fn push_without_seal(&self, header: &MessageHeader, out: &mut Vec<u8>) {
        for field in [self.results_field, self.signature_field] {
            push_line(header, field, out);
        }
    }

    /// Appends the seal, as later seals cover it.
    pub(super) fn push_seal(&self, header: &MessageHeader, out: &mut Vec<u8>) {
        push_line(header, self.seal_field, out);
    }

    /// Appends the seal as it covers itself.
    pub(super) fn push_unsigned_seal(&self, header: &MessageHeader, out: &mut Vec<u8>) {
        CanonicalForm::Relaxed.push_signature_field(&header.field(self.seal_field), out);
    }
}

fn push_line(header: &MessageHeader, field: usize, out: &mut Vec<u8>) {
    CanonicalForm::Relaxed.push_field(&header.field(field), out);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn set(instance: usize, status: &str) -> String {
        format!(
            "ARC-Seal: i={instance}; a=rsa-sha256; cv={status}; d=list.example; s=s; b=eA==\r\n\
             ARC-Message-Signature: i={instance}; a=rsa-sha256; d=list.example; s=s; h=from:to;\r\n \
             bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=; b=eA==\r\n\
             ARC-Authentication-Results: i={instance}; list.example; dmarc=pass\r\n"
        )
    }

    fn chain(header: &str) -> Result<usize, &'static str> {
        find_chain(&MessageHeader::parse(header.as_bytes().to_vec()), NOW).map(|sets| sets.len())
    }

    #[test]
    fn a_chain_has_all_fields_of_all_its_instances_once() {
        let (first, second) = (set(1, "none"), set(2, "pass"));
        assert_eq!(chain("From: a@b.example\r\n"), Ok(0));
        assert_eq!(chain(&format!("{second}{first}")), Ok(2));
        assert_eq!(chain(&format!("{first}{second}")), Ok(2));
        for (header, reason) in [
            (second.clone(), "a set is not complete"),
            (format!("{first}{first}"), "a field twice in one set"),
            (format!("{}{first}", set(2, "none")), "a seal with the wrong chain status"),
            (format!("{}{first}", set(2, "fail")), "the chain had failed before"),
            (set(1, "pass"), "a seal with the wrong chain status"),
            (first.replace("i=1; a", "i=0; a"), "a field without a valid instance"),
            (first.replace("i=1; a", "i=51; a"), "a field without a valid instance"),
            (first.replace("i=1; a", "i=+1; a"), "a field without a valid instance"),
            (first.replace("cv=none", "cv=none; h=from"), "a seal with h="),
            (first.replace("from:to", "from:arc-seal"), "a signature over seals"),
            (first.replace("from:to", "to"), "From is not signed"),
            (first.replace("h=from:to", "h=from:to; x=1600000000"), "expired"),
            (first.replace("h=from:to", "h=from:to; t=1800000000"), "signed in the future"),
            (first.replace("b=eA==", "c=d"), "a required tag is missing"),
            (first.replace("ARC-Seal: i=1;", "ARC-Seal: i=1; i=1;"), "a seal cannot be read"),
        ] {
            assert_eq!(chain(&header), Err(reason), "{header}");
        }
        let outdated = first.replace("h=from:to", "h=from:to; x=1600000000");
        assert_eq!(chain(&format!("{second}{outdated}")), Ok(2), "only the newest one counts");
        let long: String =
            (1..=SETS_MAX).map(|instance| set(instance, if instance == 1 { "none" } else { "pass" })).collect();
        assert_eq!(chain(&long), Ok(SETS_MAX));
        assert_eq!(chain(&format!("{long}{}", set(SETS_MAX + 1, "pass"))), Err("a field without a valid instance"));
    }
}
