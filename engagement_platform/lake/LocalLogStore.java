package engagement_platform;

import io.delta.storage.HDFSLogStore;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Objects;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's own log store for a local disk, but for listing: it asks the disk about those entries only that Delta wants.
 *
 * Delta lists a table's log some fifteen times for each micro-batch and wants the few entries since the last checkpoint.
 * HDFSLogStore asks for size and time of every file in the folder first, four for each version that is kept.
 */
public final class LocalLogStore extends HDFSLogStore {
    /** Called by Delta, by the setting spark.delta.logStore.file.impl. */
    public LocalLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
        FileSystem disk = path.getFileSystem(conf);
        Path folder = disk.makeQualified(path.getParent());
        String[] names = new File(folder.toUri().getPath()).list();
        if (names == null) {
            return super.listFrom(path, conf); // There is no such folder, and Delta expects its error.
        }
        String[] wanted = Arrays.stream(names)
            .filter(name -> name.compareTo(path.getName()) >= 0 && !isChecksum(name))
            .sorted()
            .toArray(String[]::new);
        // Asked as the iterator moves: cleaning a log stops at the first entry that is young enough.
        return Arrays.stream(wanted)
            .map(name -> status(disk, new Path(folder, new Path(null, null, name))))
            .filter(Objects::nonNull)
            .iterator();
    }

    /** Hadoop keeps checksums beside its files and does not list them. */
    private static boolean isChecksum(String name) {
        return name.startsWith(".") && name.endsWith(".crc");
    }

    /** Null where the entry was removed meanwhile. */
    private static FileStatus status(FileSystem disk, Path entry) {
        try {
            return disk.getFileStatus(entry);
        } catch (FileNotFoundException gone) {
            return null;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
