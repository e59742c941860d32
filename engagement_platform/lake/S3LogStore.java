package engagement_platform;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.S3AFileStatus;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/**
 * Delta's own log store for S3 and one driver, but for listing: its requests begin where Delta wants the list to begin.
 *
 * Delta has a switch for that, delta.enableFastS3AListFrom, which ends in a NoSuchMethodError with Hadoop 3.5 (Delta 4.4).
 */
public final class S3LogStore extends S3SingleDriverLogStore {
    /** Called by Delta, by the setting spark.delta.logStore.s3a.impl. */
    public S3LogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
        FileSystem files = path.getFileSystem(conf);
        if (!(files instanceof S3AFileSystem store)) {
            return super.listFrom(path, conf);
        }
        Path first = store.makeQualified(path);
        Path folder = first.getParent();
        String name = first.getName();
        String prefix = store.pathToKey(folder) + "/";
        ListObjectsV2Request asked = ListObjectsV2Request.builder()
            .bucket(store.getBucket())
            .prefix(prefix)
            .delimiter("/")
            // All keys after this one: the first that is wanted, and a few before it.
            .startAfter(prefix + name.substring(0, name.length() - 1))
            .build();
        RemoteIterator<S3AFileStatus> found = store.getListing().createFileStatusListingIterator(
            folder,
            S3ListRequest.v2(asked),
            any -> true,
            new Listing.AcceptAllButSelfAndS3nDirs(folder),
            store.getActiveAuditSpan());
        List<FileStatus> wanted = new ArrayList<>();
        while (found.hasNext()) {
            FileStatus entry = found.next();
            if (entry.getPath().getName().compareTo(name) >= 0) {
                wanted.add(entry);
            }
        }
        if (wanted.isEmpty() && !store.exists(folder)) {
            throw new FileNotFoundException("No such file or directory: " + folder);
        }
        wanted.sort(Comparator.comparing(entry -> entry.getPath().getName()));
        return wanted.iterator();
    }
}
