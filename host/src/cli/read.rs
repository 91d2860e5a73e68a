//! From arguments to [`Cli`], or to an error whose text is for the user.

use super::Cli;
use crate::text::shown;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _};
use std::ffi::OsString;

impl Cli {
    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    /// clap's, whose text is for the user; an argument that is not UTF-8 is named by its position, which clap's is not; flags
    /// of a run before a subcommand, where they would have no effect (those of the log may stand on either side).
    pub fn read(arguments: &[OsString]) -> Result<Cli, clap::Error> {
        let mut command = Cli::command();
        let matches = command.try_get_matches_from_mut(arguments).map_err(|error| name_bad_text(error, arguments))?;
        if let Some((name, _)) = matches.subcommand() {
            let given = |arg: &&clap::Arg| {
                matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine) && !arg.is_global_set()
            };
            let text = |arg: &clap::Arg| match (arg.get_long(), arg.get_short()) {
                (Some(long), _) => format!("--{long}"),
                (None, Some(short)) => format!("-{short}"),
                (None, None) => arg.to_string(),
            };
            let misplaced = command.get_arguments().find(given).map(text);
            if let Some(flag) = misplaced {
                let message = format!("`{flag}` stands before `{name}`: flags of `{name}` follow it");
                return Err(command.error(ErrorKind::ArgumentConflict, message));
            }
        }
        Cli::from_arg_matches(&matches)
    }
}

/// Names an argument that is not UTF-8 by its position, where that is what clap complains of.
fn name_bad_text(error: clap::Error, arguments: &[OsString]) -> clap::Error {
    if error.kind() != ErrorKind::InvalidUtf8 {
        return error;
    }
    // Paths may be any bytes, but then they aren't what clap complains of, or are beside it.
    let bad = arguments.iter().enumerate().filter(|(_, argument)| argument.to_str().is_none());
    let bad: Vec<_> =
        bad.map(|(index, argument)| format!("argument {index}, `{}`", shown(&argument.to_string_lossy()))).collect();
    clap::Error::raw(
        ErrorKind::InvalidUtf8,
        format!("not UTF-8: {}; options and arguments of the guest must be text\n", bad.join("; ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::LogFormat;
    use std::os::unix::ffi::OsStringExt as _;

    #[test]
    fn an_argument_that_is_not_text_is_named_by_its_position() {
        let bad = || OsString::from_vec(vec![b'a', 0xff]);
        for (arguments, position) in [
            (vec!["dchost".into(), "--module".into(), "m".into(), "--".into(), bad()], 4),
            (vec!["dchost".into(), "--env".into(), bad()], 2),
            (vec!["dchost".into(), "plan".into(), "--".into(), "x".into(), bad()], 4),
        ] {
            let error = Cli::read(&arguments).unwrap_err().to_string();
            assert!(error.contains(&format!("argument {position}, `a\u{fffd}`")), "{error}");
        }
        // A path may be any bytes.
        assert!(Cli::read(&["dchost".into(), "--module".into(), bad()]).is_ok());
    }

    #[test]
    fn flags_of_the_log_stand_on_either_side_of_a_subcommand_and_others_behind_it() {
        let read = |line: &str| Cli::read(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["dchost -v launch --workers 2", "dchost launch -v --workers 2", "dchost launch --workers 2 -v"] {
            assert_eq!(read(line).map(|cli| cli.log.verbose).map_err(|error| error.to_string()), Ok(1), "{line}");
        }
        let json = read("dchost --log-format=json plan --task=ps:0").expect("parses");
        assert_eq!(json.log.log_format, Some(LogFormat::Json));
        for (line, flag) in [
            ("dchost --task=ps:0 launch --workers 2", "`--task` stands before `launch`"),
            ("dchost -Wfuel=1 plan", "`-W` stands before `plan`"),
        ] {
            let error = read(line).expect_err("it would have no effect").to_string();
            assert!(error.contains(flag), "{error}");
        }
        assert!(read("dchost --module=m -- launch").is_ok(), "an argument of the guest is no subcommand");
    }
}
