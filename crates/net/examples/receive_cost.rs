//! What it costs to receive a large message into a file: by reads and writes, and by splice through a
//! pipe ("recvfile"), which copies no byte to the program. Both with and without the checksum that a
//! stored message needs, for which the program must see every byte after all. Prints the CPU time of
//! the thread that receives.
//!
//! This is the best case of splice: BDAT (RFC 3030) in clear text, whose length is known. With DATA
//! each byte has to be seen to find the end, and TLS has to decrypt it.
//!
//! ```sh
//! cargo run --release -p net --example receive_cost -- FOLDER [MEGABYTES [ROUNDS]]
//! ```

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on fails")]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};

const BUFFER_OCTETS: usize = 256 << 10;
/// A message of the size that is spilled and transferred in one chunk.
const MESSAGE_OCTETS: usize = 10_000_000;

/// A way to receive.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    is_spliced: bool,
    has_checksum: bool,
}

const WAYS: [Way; 4] = [
    Way { name: "read and write, with checksum", is_spliced: false, has_checksum: true },
    Way { name: "splice, then read for the checksum", is_spliced: true, has_checksum: true },
    Way { name: "read and write, no checksum", is_spliced: false, has_checksum: false },
    Way { name: "splice, no checksum", is_spliced: true, has_checksum: false },
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("usage: receive_cost FOLDER [MEGABYTES [ROUNDS]]"));
    let mut number = |default: usize| arguments.next().map_or(default, |text| text.parse().unwrap());
    let (messages, rounds) = ((number(1000) * 1_000_000).div_ceil(MESSAGE_OCTETS), number(5));
    let mut results: [Vec<f64>; WAYS.len()] = Default::default();
    for round in 0..rounds {
        for turn in 0..WAYS.len() {
            let index = if round % 2 == 0 { turn } else { WAYS.len() - 1 - turn };
            results[index].push(measure(WAYS[index], &folder, messages));
        }
    }
    for (way, mut seconds) in WAYS.into_iter().zip(results) {
        seconds.sort_by(f64::total_cmp);
        let (least, most) = (seconds[0], seconds[seconds.len() - 1]);
        println!("{:<36} {:.3} CPU s/GB ({least:.3} to {most:.3})", way.name, seconds[seconds.len() / 2]);
    }
}

/// CPU seconds for each GB.
fn measure(way: Way, folder: &Path, messages: usize) -> f64 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let sender = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let message: Vec<u8> = (0..MESSAGE_OCTETS).map(|octet| octet as u8).collect();
        (0..messages).for_each(|_| stream.write_all(&message).unwrap());
    });
    let mut stream = listener.accept().unwrap().0;
    let path = folder.join("received");
    let started = Instant::now();
    let before = thread_seconds();
    let mut checksum = 0;
    for _ in 0..messages {
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        checksum ^= match way.is_spliced {
            true => receive_by_splice(&stream, &file, way.has_checksum),
            false => receive_by_copies(&mut stream, &file, way.has_checksum),
        };
        std::fs::remove_file(&path).unwrap();
    }
    let spent = thread_seconds() - before;
    sender.join().unwrap();
    let gigabytes = (messages * MESSAGE_OCTETS) as f64 / 1e9;
    let rate = gigabytes / started.elapsed().as_secs_f64();
    println!("{}: {:.3} CPU s/GB, {rate:.2} GB/s, {checksum:08x}", way.name, spent / gigabytes);
    spent / gigabytes
}

fn receive_by_copies(stream: &mut TcpStream, mut file: &File, has_checksum: bool) -> u32 {
    let (mut left, mut checksum, mut buffer) = (MESSAGE_OCTETS, 0, vec![0; BUFFER_OCTETS]);
    while left > 0 {
        let limit = left.min(BUFFER_OCTETS);
        let count = stream.read(&mut buffer[..limit]).unwrap();
        assert!(count > 0, "the sender has closed");
        if has_checksum {
            checksum = crc32c::crc32c_append(checksum, &buffer[..count]);
        }
        file.write_all(&buffer[..count]).unwrap();
        left -= count;
    }
    checksum
}

fn receive_by_splice(stream: &TcpStream, file: &File, has_checksum: bool) -> u32 {
    let (output, input) = pipe().unwrap();
    fcntl_setpipe_size(&input, BUFFER_OCTETS).unwrap();
    let flags = SpliceFlags::MOVE | SpliceFlags::MORE;
    let mut left = MESSAGE_OCTETS;
    while left > 0 {
        let mut in_pipe = splice(stream, None, &input, None, left.min(BUFFER_OCTETS), flags).unwrap();
        assert!(in_pipe > 0, "the sender has closed");
        left -= in_pipe;
        while in_pipe > 0 {
            in_pipe -= splice(&output, None, file, None, in_pipe, flags).unwrap();
        }
    }
    if has_checksum { checksum_of(file) } else { 0 }
}

fn checksum_of(file: &File) -> u32 {
    let (mut offset, mut checksum, mut buffer) = (0, 0, vec![0; BUFFER_OCTETS]);
    loop {
        let count = file.read_at(&mut buffer, offset).unwrap();
        if count == 0 {
            return checksum;
        }
        checksum = crc32c::crc32c_append(checksum, &buffer[..count]);
        offset += count as u64;
    }
}

/// The CPU time of this thread, in seconds.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}
