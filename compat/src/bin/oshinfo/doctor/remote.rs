// SPDX-License-Identifier: Apache-2.0
//! Other machines: whether a job can be started on them, and what their own `oshinfo` finds there.

use super::Grade;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// No questions, and no longer than this for a machine that does not answer.
const SSH: [&str; 5] = ["-x", "-a", "-T", "-oBatchMode=yes", "-oConnectTimeout=10"];
/// For a whole machine.
const LIMIT: Duration = Duration::from_secs(60);
/// For what has been said when the command has ended: a process that it leaves behind, such as ssh's master of
/// shared connections, may keep its streams open.
const REST: Duration = Duration::from_secs(1);
/// How long to wait for a stream before looking whether the command has ended.
const MOMENT: Duration = Duration::from_millis(5);

/// Has `own`, which is to be there as well, examine machine `name`, started by `rsh`. Gives what is to
/// be printed and the worst that was found.
pub fn examine(own: &Path, rsh: &[String], name: &str) -> (String, Grade) {
    let [program, arguments @ ..] = rsh else { return ("--rsh is empty\n".into(), Grade::Fails) };
    let mut command = Command::new(program);
    let is_ssh = Path::new(program).file_name().is_some_and(|name| name == "ssh");
    command.args(arguments).args(if is_ssh { &SSH[..] } else { &[] }).arg(name);
    command.arg(format!("{} --doctor", quoted(&own.display().to_string())));
    match run(&mut command) {
        Ok((Some(code @ (0 | 3 | 4)), said, _)) if said.starts_with("What makes") => {
            let grades = [Grade::Good, Grade::Slow, Grade::Fails];
            let grade = grades.into_iter().find(|grade| i32::from(grade.code()) == code);
            (said, grade.unwrap_or(Grade::Fails))
        }
        Ok((Some(127), ..)) => failed(
            name,
            &format!("{} is not there", own.display()),
            "cargo dev install --prefix with the same directory on that machine",
        ),
        Ok((_, said, error)) => {
            let words = [said, error].concat();
            let last = words.lines().map(str::trim).rfind(|line| !line.is_empty());
            let why = last.unwrap_or("it ended without a word");
            failed(
                name,
                why,
                &format!(
                    "ssh-keygen -t ed25519; ssh-copy-id {name}; {} {name} true",
                    rsh.join(" ")
                ),
            )
        }
        Err(why) => failed(
            name,
            &why,
            &format!("{} {name} true   # until this works without a question", rsh.join(" ")),
        ),
    }
}

fn failed(name: &str, why: &str, change: &str) -> (String, Grade) {
    let heading = format!("What makes jobs slow or impossible on {name}\n");
    let effect = "no job starts on this machine";
    let finding = super::Finding::new("ssh", Grade::Fails, why, effect, &[change]);
    (format!("{heading}{finding}"), Grade::Fails)
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Exit code, standard output and error of a command that is killed when it takes too long.
fn run(command: &mut Command) -> Result<(Option<i32>, String, String), String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().display().to_string();
    let mut child = command.spawn().map_err(|why| format!("cannot run '{program}': {why}"))?;
    let mut streams = [Heard::of(child.stdout.take()), Heard::of(child.stderr.take())];
    let (mut end, mut ended) = (Instant::now() + LIMIT, None);
    while ended.is_none() || streams.iter().any(|heard| heard.stream.is_some()) {
        if Instant::now() > end {
            if ended.is_some() {
                break;
            }
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("no answer within {} s", LIMIT.as_secs()));
        }
        if ended.is_none() {
            ended = child.try_wait().map_err(|why| why.to_string())?;
            end = ended.map_or(end, |_| Instant::now() + REST);
        }
        streams.iter_mut().for_each(Heard::hear);
    }
    let [out, error] = streams.map(|heard| String::from_utf8_lossy(&heard.said).into_owned());
    Ok((ended.and_then(|status| status.code()), out, error))
}

/// A stream of the command, until it ends, and what came from it.
struct Heard {
    stream: Option<File>,
    said: Vec<u8>,
}

impl Heard {
    fn of(stream: Option<impl Into<OwnedFd>>) -> Heard {
        Heard { stream: stream.map(|stream| File::from(stream.into())), said: Vec::new() }
    }

    /// Waits a moment for the stream, and takes a piece of what comes from it.
    fn hear(&mut self) {
        let Some(stream) = &mut self.stream else { return sleep(MOMENT) };
        let moment = PollTimeout::try_from(MOMENT).unwrap_or(PollTimeout::ZERO);
        let said = poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], moment);
        if !said.is_ok_and(|streams| streams > 0) {
            return;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(len @ 1..) => self.said.extend_from_slice(&piece[..len]),
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            _ => self.stream = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(script: &str) -> (String, Grade) {
        let rsh = ["sh", "-c", script].map(str::to_owned);
        examine(Path::new("/opt/it's/bin/oshinfo"), &rsh, "n1")
    }

    #[test]
    fn a_process_that_the_command_leaves_behind_is_not_waited_for() {
        let begun = Instant::now();
        let mut command = Command::new("sh");
        let (code, said, _) = run(command.args(["-c", "sleep 600 & echo $!; exit 3"])).unwrap();
        let left: i32 = said.trim().parse().expect("the number of a process");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(left), nix::sys::signal::SIGKILL)
            .unwrap();
        assert_eq!(code, Some(3));
        assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    }

    #[test]
    fn what_a_machine_finds_is_passed_on_and_one_that_cannot_be_reached_is_told() {
        let (text, grade) = by("echo What makes jobs slow on n1; exit 3");
        assert_eq!((text.as_str(), grade), ("What makes jobs slow on n1\n", Grade::Slow));
        let (text, grade) = by("echo 'n1: Permission denied (publickey).' >&2; exit 255");
        assert!(text.contains("Permission denied") && text.contains("ssh-copy-id n1"), "{text}");
        assert_eq!(grade, Grade::Fails);
        let (text, _) = by("exit 127");
        assert!(text.contains("oshinfo is not there"), "{text}");
        let (text, _) = examine(Path::new("/x"), &["/no/such/rsh".to_owned()], "n1");
        assert!(text.contains("cannot run '/no/such/rsh'"), "{text}");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
