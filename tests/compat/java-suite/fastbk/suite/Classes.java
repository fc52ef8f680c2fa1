package fastbk.suite;

import java.io.File;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.bookkeeper.client.BookKeeperTestClient;
import org.apache.bookkeeper.test.BookKeeperClusterTestCase;
import org.junit.Test;

/** Prints the name of every test class in Apache's jar, and whether it starts bookies by its base class. */
public final class Classes {
    private Classes() {}

    public static void main(String[] arguments) throws Exception {
        File file = new File(BookKeeperTestClient.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        try (JarFile jar = new JarFile(file)) {
            for (JarEntry entry : jar.stream().toList()) {
                String name = entry.getName();
                if (name.endsWith(".class") && !name.contains("$")) {
                    Class<?> type = Class.forName(
                            name.substring(0, name.length() - ".class".length()).replace('/', '.'),
                            false, Classes.class.getClassLoader());
                    if (hasTests(type)) {
                        boolean hasBookies = BookKeeperClusterTestCase.class.isAssignableFrom(type);
                        System.out.println("CLASS\t" + type.getName() + "\t" + hasBookies);
                    }
                }
            }
        }
    }

    private static boolean hasTests(Class<?> type) {
        if (Modifier.isAbstract(type.getModifiers())) {
            return false;
        }
        try {
            for (Method method : type.getMethods()) {
                if (method.isAnnotationPresent(Test.class)) {
                    return true;
                }
            }
        } catch (NoClassDefFoundError error) {
            // A library that only its own tests need: not what is looked for here, unless it starts bookies.
            return BookKeeperClusterTestCase.class.isAssignableFrom(type);
        }
        return false;
    }
}
