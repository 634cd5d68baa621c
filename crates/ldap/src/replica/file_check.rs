//! Checks all used pages of an LMDB file before LMDB maps it.
//!
//! LMDB trusts its file. It takes a page of zeroes for an empty one, so that keys are missing, and
//! garbage can crash the process. This check finds misplaced pages, nodes that exceed their page,
//! keys out of order, and missing entries. It cannot find changes within values, because pages have
//! no checksums. It reads about 14,000 pages for half a million entries.
//!
//! Supports format version 1 on 64-bit little-endian machines.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
/// Header sizes of a page and a node, and the size of a tree description, in octets.
const HEADER: usize = 16;
const NODE: usize = 8;
const TREE: usize = 48;
/// Offsets in a meta page: two tree descriptions, then the last page number, then the transaction
/// ID.
const TREES_AT: usize = 40;
const LAST_AT: usize = TREES_AT + 2 * TREE;
const DEPTH_MAX: u16 = 32;

const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
const BIG_DATA: u16 = 1;
const SUB_DATA: u16 = 2;
const NO_PAGE: u64 = u64::MAX;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileDamage {
    /// Not an LMDB file, or not one of ours.
    #[error("not a replica file")]
    Foreign,
    /// A used page is damaged or missing.
    #[error("page {0} is damaged or missing")]
    Page(u64),
    /// A tree has another number of entries than stated.
    #[error("entries are missing")]
    Entries,
    /// An I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The description of a tree.
struct Tree {
    depth: u16,
    entries: u64,
    root: u64,
}

struct PageCheck<'f> {
    file: &'f File,
    page_octets: usize,
    /// Pages that may still be visited, so that a loop ends.
    left: u64,
}

/// Checks all used pages. An empty file is valid.
pub(super) fn check_file(file: &File) -> Result<(), FileDamage> {
    if file.metadata()?.len() == 0 || cfg!(not(all(target_endian = "little", target_pointer_width = "64"))) {
        return Ok(());
    }
    let mut head = [0; LAST_AT + 16];
    read(file, &mut head, 0).map_err(|_| FileDamage::Foreign)?;
    if u32_at(&head, HEADER) != MAGIC || u32_at(&head, HEADER + 4) != VERSION {
        return Err(FileDamage::Foreign);
    }
    let page_octets = u32_at(&head, TREES_AT) as usize;
    if !page_octets.is_power_of_two() || !(512..=65_536).contains(&page_octets) {
        return Err(FileDamage::Foreign);
    }
    let mut other = [0; LAST_AT + 16];
    read(file, &mut other, page_octets as u64).map_err(|_| FileDamage::Page(1))?;
    if u32_at(&other, HEADER) != MAGIC {
        return Err(FileDamage::Page(1));
    }
    // The meta page with the newer transaction is valid.
    let meta = if u64_at(&other, LAST_AT + 8) > u64_at(&head, LAST_AT + 8) { other } else { head };
    let mut walk = PageCheck { file, page_octets, left: u64_at(&meta, LAST_AT).saturating_add(1) };
    // The keys of the first tree are numbers in their own order.
    walk.tree(&Tree::read(&meta[TREES_AT..]), false)?;
    walk.tree(&Tree::read(&meta[TREES_AT + TREE..]), true)
}

impl Tree {
    fn read(octets: &[u8]) -> Tree {
        Tree { depth: u16_at(octets, 6), entries: u64_at(octets, 32), root: u64_at(octets, 40) }
    }
}

impl PageCheck<'_> {
    fn tree(&mut self, tree: &Tree, ordered: bool) -> Result<(), FileDamage> {
        if tree.root == NO_PAGE {
            return if tree.entries == 0 { Ok(()) } else { Err(FileDamage::Entries) };
        }
        if tree.depth == 0 || tree.depth > DEPTH_MAX {
            return Err(FileDamage::Page(tree.root));
        }
        match self.page(tree.root, tree.depth, ordered)? {
            entries if entries == tree.entries => Ok(()),
            _ => Err(FileDamage::Entries),
        }
    }

    /// Counts the entries below a page at `depth` levels, 1 being a leaf.
    fn page(&mut self, number: u64, depth: u16, ordered: bool) -> Result<u64, FileDamage> {
        let broken = || FileDamage::Page(number);
        let mut page = vec![0; self.page_octets];
        self.read_page(number, &mut page)?;
        let kind = if depth == 1 { LEAF } else { BRANCH };
        let (lower, upper) = (usize::from(u16_at(&page, 12)), usize::from(u16_at(&page, 14)));
        let sound = u16_at(&page, 10) == kind && lower > HEADER && lower <= upper && upper <= page.len();
        if !sound || lower % 2 != 0 {
            return Err(broken());
        }
        let mut entries = 0;
        let mut before: Option<&[u8]> = None;
        for place in (HEADER..lower).step_by(2) {
            let node = usize::from(u16_at(&page, place));
            let node = page.get(node..).filter(|it| node >= upper && it.len() >= NODE).ok_or_else(broken)?;
            let (flags, key_octets) = (u16_at(node, 4), usize::from(u16_at(node, 6)));
            let key = node.get(NODE..NODE + key_octets).ok_or_else(broken)?;
            // The first key of a branch is empty and precedes all others.
            let is_first = place == HEADER;
            if ordered && (before.is_some_and(|before| before >= key) || (key.is_empty() && !(is_first && depth > 1))) {
                return Err(broken());
            }
            before = Some(key).filter(|_| !(is_first && depth > 1));
            entries += match depth {
                1 => self.leaf(number, flags, node, NODE + key_octets)?,
                _ => self.page(u64::from(u32_at(node, 0)) | u64::from(flags) << 32, depth - 1, ordered)?,
            };
        }
        Ok(entries)
    }

    /// Checks an entry whose data begin at offset `data` of its node.
    fn leaf(&mut self, number: u64, flags: u16, node: &[u8], data: usize) -> Result<u64, FileDamage> {
        let octets = u32_at(node, 0) as usize;
        let here = if flags & BIG_DATA != 0 { 8 } else { octets };
        let data = node.get(data..data + here).ok_or(FileDamage::Page(number))?;
        if flags & BIG_DATA != 0 {
            self.overflow(u64_at(data, 0), octets)?;
        }
        if flags & SUB_DATA != 0 {
            match data.len() {
                TREE => self.tree(&Tree::read(data), true)?,
                _ => return Err(FileDamage::Page(number)),
            }
        }
        Ok(1)
    }

    /// Checks the overflow pages of one value.
    fn overflow(&mut self, number: u64, octets: usize) -> Result<(), FileDamage> {
        let mut page = vec![0; self.page_octets];
        self.read_page(number, &mut page)?;
        let pages = u64::from(u32_at(&page, 12));
        let whole = pages * self.page_octets as u64 >= (octets + HEADER) as u64;
        let end = number.saturating_add(pages).saturating_mul(self.page_octets as u64);
        match u16_at(&page, 10) == OVERFLOW && whole && end <= self.file.metadata()?.len() {
            true => Ok(()),
            false => Err(FileDamage::Page(number)),
        }
    }

    fn read_page(&mut self, number: u64, page: &mut [u8]) -> Result<(), FileDamage> {
        self.left = self.left.checked_sub(1).ok_or(FileDamage::Page(number))?;
        let place = number.checked_mul(page.len() as u64).ok_or(FileDamage::Page(number))?;
        match read(self.file, page, place) {
            Ok(()) if u64_at(page, 0) == number => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
            _ => Err(FileDamage::Page(number)),
        }
    }
}

fn read(file: &File, octets: &mut [u8], place: u64) -> io::Result<()> {
    // An offset that the system cannot represent is past the end of the file.
    match i64::try_from(place) {
        Ok(_) => file.read_exact_at(octets, place),
        Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn u16_at(octets: &[u8], place: usize) -> u16 {
    octets.get(place..).and_then(<[u8]>::first_chunk).map_or(0, |it| u16::from_le_bytes(*it))
}

fn u32_at(octets: &[u8], place: usize) -> u32 {
    octets.get(place..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_le_bytes(*it))
}

fn u64_at(octets: &[u8], place: usize) -> u64 {
    octets.get(place..).and_then(<[u8]>::first_chunk).map_or(0, |it| u64::from_le_bytes(*it))
}
