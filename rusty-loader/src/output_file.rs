//! Files, and folders of them, that are written whole or not at all.

use crate::{Error, Result};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Whether there is something at a path, if only a link to nothing.
pub fn is_taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Whether a file could be written at a path, for work that should not be done in vain.
///
/// # Errors
/// [`Error::Io`] where `path` is a folder, a device or in no folder.
pub fn check(path: &Path) -> Result<()> {
    folder(&place(path)?)
        .map(drop)
        .map_err(|reason| Error::io(path, reason))
}

/// Writes the file at `path` through `write`, which fills a new, empty file in the same folder by its path. When all of
/// it lies on the disk it takes the place of what was at `path`, and its permissions; where anything fails it is removed,
/// and `path` is as it was. Of a link it is the link's file that is written.
///
/// # Errors
/// [`Error::Io`] where `path` is a folder, a device or in no folder, or the file system fails; what `write` reports.
pub fn write_whole<E: From<Error>>(
    path: &Path,
    write: impl FnOnce(&Path) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let failed = |reason| Error::io(path, reason);
    let place = place(path)?;
    let part = new_file(&place).map_err(failed)?;
    // Writers may replace the file by one that others cannot read.
    let permissions = match place.metadata() {
        Ok(there) => there.permissions(),
        Err(_) => part.as_file().metadata().map_err(failed)?.permissions(),
    };
    // Closed, because systems may refuse to replace an open file.
    let part = part.into_temp_path();
    write(&part)?;
    let finish = || {
        let file = File::options().write(true).open(&part)?;
        file.sync_all()?;
        file.set_permissions(permissions)?;
        drop(file);
        part.persist(&place).map_err(|e| e.error)
    };
    finish().map_err(failed)?;
    Ok(())
}

/// Makes the folder at `path`, where nothing is yet, and fills it through `write`; where that fails it is removed again.
///
/// # Errors
/// [`Error::Io`] where the folder cannot be made; what `write` reports.
pub fn write_folder<E: From<Error>>(
    path: &Path,
    write: impl FnOnce() -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let above = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let made = above.and_then(|()| std::fs::create_dir(path));
    made.map_err(|reason| Error::io(path, reason))?;
    let written = write();
    if written.is_err() {
        // Why it could not be written matters more than what is left of it.
        let _ = std::fs::remove_dir_all(path);
    }
    written
}

/// Where the file itself is to lie.
fn place(path: &Path) -> Result<PathBuf> {
    let failed = |reason| Error::io(path, reason);
    let place = match path.is_symlink() {
        true => path.canonicalize().map_err(failed)?,
        false => path.into(),
    };
    match place.metadata() {
        Ok(there) if !there.is_file() => Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "is no regular file that could be replaced",
        ))),
        _ => Ok(place),
    }
}

/// The folder of a file.
fn folder(place: &Path) -> io::Result<&Path> {
    let folder = match place.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match folder.is_dir() {
        true => Ok(folder),
        false => {
            let reason = format!("there is no folder {}", folder.display());
            Err(io::Error::new(io::ErrorKind::NotFound, reason))
        }
    }
}

fn new_file(place: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&name).suffix(".part");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder(place)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) -> Result<()> {
        write_whole(path, |part| {
            std::fs::write(part, text).map_err(|e| Error::io(part, e))
        })
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("folder");
        let name = |e: io::Result<std::fs::DirEntry>| e.expect("entry").file_name();
        let mut names: Vec<_> = entries
            .map(|e| name(e).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_fails_leaves_everything_as_it_was() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        write(&path, "first").expect("written");
        let failed = write_whole(&path, |part| {
            std::fs::write(part, "second").expect("part");
            Err(Error::malformed(part, "stopped"))
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("file"), "first");
        assert_eq!(names(folder.path()), ["file"]);
        write(&path, "third").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("file"), "third");
        assert_eq!(names(folder.path()), ["file"]);
        let error = write(&folder.path().join("none/file"), "").expect_err("no folder");
        assert!(error.to_string().contains("no folder"), "{error}");
        assert!(write(folder.path(), "").is_err(), "a folder is no file");
    }

    #[test]
    fn a_folder_that_cannot_be_filled_is_removed() {
        let root = tempfile::tempdir().expect("folder");
        let path = root.path().join("above/folder");
        let fill = |fails: bool| {
            write_folder(&path, || {
                std::fs::write(path.join("file"), "text").expect("written");
                match fails {
                    true => Err(Error::malformed(&path, "stopped")),
                    false => Ok(()),
                }
            })
        };
        assert!(fill(true).is_err() && !is_taken(&path));
        fill(false).expect("filled");
        // What is there already is nobody's to remove.
        let taken = fill(true).expect_err("there").to_string();
        assert!(taken.contains("above/folder"), "{taken}");
        assert_eq!(names(&path), ["file"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_permissions_too() {
        use std::fs::Permissions;
        use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
        let folder = tempfile::tempdir().expect("folder");
        let [path, link, lost] = ["file", "link", "lost"].map(|n| folder.path().join(n));
        std::fs::write(&path, "old").expect("file");
        let usual = path.metadata().expect("file").mode();
        symlink(&path, &link).expect("link");
        symlink("nowhere", &lost).expect("link");
        write(&link, "new").expect("written");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&path).expect("file"), "new");
        assert_eq!(path.metadata().expect("file").mode(), usual);
        std::fs::remove_file(&path).expect("removed");
        write(&path, "as new").expect("written");
        assert_eq!(path.metadata().expect("file").mode(), usual);
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("closed");
        write(&path, "secret").expect("written");
        assert_eq!(path.metadata().expect("file").mode() & 0o777, 0o600);
        assert!(check(&path).is_ok() && check(Path::new("/dev/null")).is_err());
        assert!(is_taken(&lost) && !lost.exists());
        assert!(write(&lost, "").is_err());
    }
}
